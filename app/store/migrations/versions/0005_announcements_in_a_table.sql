-- An announcement is a row, not a NOTIFY: that lets the transactions which announce commit one after the other, each
-- with a flush of its own. greenline.postgres.ANNOUNCEMENTS has the same table.
create unlogged table greenline_announcements (
    xid xid8 not null default pg_current_xact_id(),
    tags text not null
);
create index greenline_announcements_xid on greenline_announcements (xid);
grant select, insert, delete on greenline_announcements to public;

-- By the name of the schema: a program that writes may have another search_path.
do $migration$
begin
    execute replace($sql$
        create or replace function announce_items() returns trigger language plpgsql as $$
        declare
            lines text;
        begin
            select case count(*)
                when 201 then tg_table_name || ' items' else string_agg(tg_table_name || ' ' || id, e'\n')
            end into lines
            from (select id from changed limit 201) as these;
            if lines is not null then
                -- A book shows the names of its authors and genres, and the trigger that makes its next version is not
                -- called by a program that has set session_replication_role to replica.
                if tg_op <> 'INSERT' and tg_table_name in ('authors', 'genres') then
                    lines := lines || e'\nbooks items\nbooks';
                end if;
                insert into SCHEMA.greenline_announcements (tags) values (lines || e'\n' || tg_table_name);
            end if;
            return null;
        end
        $$;

        create or replace function announce_books() returns trigger language plpgsql as $$
        declare
            lines text;
        begin
            select case count(*) when 201 then 'books items' else string_agg('books ' || book_id, e'\n') end
            into lines
            from (select distinct book_id from changed limit 201) as these;
            if lines is not null then
                insert into SCHEMA.greenline_announcements (tags) values (lines || e'\nbooks');
            end if;
            return null;
        end
        $$;

        create or replace function announce_all() returns trigger language plpgsql as $$
        begin
            insert into SCHEMA.greenline_announcements (tags) values (tg_argv[0] || e' items\n' || tg_argv[0]);
            return null;
        end
        $$;
    $sql$, 'SCHEMA', quote_ident(current_schema()));
end
$migration$;
