-- Announce each write, by whichever program, to the caches of the workers (docs/cache.md): a line "books 17" for each
-- item that is changed, or "books items" for all of them, and "books" for the lists. Postgres sends equal announcements
-- of a transaction once, at its commit.
create function announce(kind text, ids bigint[]) returns void language plpgsql as $$
begin
    if cardinality(ids) > 200 then -- an announcement is shorter than 8,000 bytes
        perform pg_notify('greenline_cache', kind || e' items\n' || kind);
    elsif cardinality(ids) > 0 then
        perform pg_notify(
            'greenline_cache',
            (select string_agg(kind || ' ' || id, e'\n' order by id) from unnest(ids) as given (id))
                || e'\n' || kind
        );
    end if;
end
$$;

create function announce_items() returns trigger language plpgsql as $$
begin
    perform announce(tg_table_name, array(select id from changed limit 201));
    return null;
end
$$;

-- A book shows its authors and genres.
create function announce_books() returns trigger language plpgsql as $$
begin
    perform announce('books', array(select distinct book_id from changed limit 201));
    return null;
end
$$;

create function announce_all() returns trigger language plpgsql as $$
begin
    perform pg_notify('greenline_cache', tg_argv[0] || e' items\n' || tg_argv[0]);
    return null;
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
