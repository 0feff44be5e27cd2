-- Announce each write, by whichever program, to the caches of the workers (docs/cache.md): a line "books 17" for each
-- item that is changed, or "books items" for all of them, and "books" for the lists. Postgres sends equal announcements
-- of a transaction once, at its commit. The triggers are off: announce_writes(true), which flask db upgrade calls where
-- there are caches, enables them.
create function announce_items() returns trigger language plpgsql as $$
declare
    lines text;
begin
    -- An announcement is shorter than 8,000 bytes.
    select case count(*) when 201 then tg_table_name || ' items' else string_agg(tg_table_name || ' ' || id, e'\n') end
    into lines
    from (select id from changed limit 201) as these;
    if lines is not null then
        perform pg_notify('greenline_cache', lines || e'\n' || tg_table_name);
    end if;
    return null;
end
$$;

-- A book shows its authors and genres.
create function announce_books() returns trigger language plpgsql as $$
declare
    lines text;
begin
    select case count(*) when 201 then 'books items' else string_agg('books ' || book_id, e'\n') end
    into lines
    from (select distinct book_id from changed limit 201) as these;
    if lines is not null then
        perform pg_notify('greenline_cache', lines || e'\nbooks');
    end if;
    return null;
end
$$;

create function announce_all() returns trigger language plpgsql as $$
begin
    perform pg_notify('greenline_cache', tg_argv[0] || e' items\n' || tg_argv[0]);
    return null;
end
$$;

create function announce_writes(is_on boolean) returns void language plpgsql as $$
declare
    changed regclass;
    announces name;
begin
    for changed, announces in
        select tgrelid, tgname
        from pg_trigger join pg_class on pg_class.oid = tgrelid
        where starts_with(tgname, 'announce_') and relnamespace = current_schema()::regnamespace
            and (tgenabled <> 'D') <> is_on
    loop
        execute 'alter table ' || changed || case when is_on then ' enable' else ' disable' end
            || ' trigger ' || quote_ident(announces);
    end loop;
end
$$;

do $$
declare
    changed text;
    items text;
    announces text;
begin
    for changed, items, announces in values
        ('books', 'books', 'announce_items'),
        ('authors', 'authors', 'announce_items'),
        ('genres', 'genres', 'announce_items'),
        ('agents', 'agents', 'announce_items'),
        ('book_authors', 'books', 'announce_books'),
        ('book_genres', 'books', 'announce_books')
    loop
        execute 'create trigger announce_insert after insert on ' || changed
            || ' referencing new table as changed for each statement execute function ' || announces || '()';
        execute 'create trigger announce_update after update on ' || changed
            || ' referencing old table as changed for each statement execute function ' || announces || '()';
        execute 'create trigger announce_delete after delete on ' || changed
            || ' referencing old table as changed for each statement execute function ' || announces || '()';
        execute 'create trigger announce_truncate after truncate on ' || changed
            || ' for each statement execute function announce_all(' || quote_literal(items) || ')';
    end loop;
    -- A row that is given to another book changes both.
    create trigger announce_update_to after update on book_authors
    referencing new table as changed for each statement execute function announce_books();
    create trigger announce_update_to after update on book_genres
    referencing new table as changed for each statement execute function announce_books();
end
$$;

select announce_writes(false);
