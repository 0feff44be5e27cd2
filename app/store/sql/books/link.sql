-- Give the books of these ids their authors and genres, making those that are new. Names in one
-- order, so that two transactions which add the same ones cannot wait for each other.
insert into authors (name)
select name from unnest(%(authors)s::text[]) as given (name)
where not exists (select from authors where authors.name = given.name)
order by name
on conflict (name) do nothing;

insert into genres (name)
select name from unnest(%(genres)s::text[]) as given (name)
where not exists (select from genres where genres.name = given.name)
order by name
on conflict (name) do nothing;

-- What stays as it is is not written. An author who was deleted since has no id, and 0 is nobody's:
-- the foreign key tells it.
with given as materialized (
    select sent.id as book_id, coalesce(authors.id, 0) as author_id, min(named.position) as position
    from json_to_recordset(%(items)s::json) as sent (id bigint, authors json)
    cross join json_array_elements_text(sent.authors) with ordinality as named (name, position)
    left join authors on authors.name = named.name
    group by 1, 2
),
gone as (
    delete from book_authors
    where book_id = any(%(ids)s::bigint[])
        and (book_id, author_id) not in (select book_id, author_id from given)
)
insert into book_authors (book_id, author_id, position)
select book_id, author_id, position from given order by author_id, book_id
on conflict (book_id, author_id) do update set position = excluded.position
where book_authors.position <> excluded.position;

with given as materialized (
    select sent.id as book_id, coalesce(genres.id, 0) as genre_id, min(named.position) as position
    from json_to_recordset(%(items)s::json) as sent (id bigint, genres json)
    cross join json_array_elements_text(sent.genres) with ordinality as named (name, position)
    left join genres on genres.name = named.name
    group by 1, 2
),
gone as (
    delete from book_genres
    where book_id = any(%(ids)s::bigint[])
        and (book_id, genre_id) not in (select book_id, genre_id from given)
)
insert into book_genres (book_id, genre_id, position)
select book_id, genre_id, position from given order by genre_id, book_id
on conflict (book_id, genre_id) do update set position = excluded.position
where book_genres.position <> excluded.position
