-- Give the books of these ids their authors and genres, making those that are new. Names in one
-- order, so that two transactions which add the same ones cannot wait for each other.
insert into authors (name)
select name
from (
    select distinct name from json_to_recordset(%(author_links)s::json) as link (name text)
) sent
where (select id from authors where authors.name = sent.name) is null
order by name
on conflict (name) do nothing;

insert into genres (name)
select name
from (
    select distinct name from json_to_recordset(%(genre_links)s::json) as link (name text)
) sent
where (select id from genres where genres.name = sent.name) is null
order by name
on conflict (name) do nothing;

-- A name is looked up by a subquery: the planner does not know how few there are, and a join would
-- read all authors. What stays as it is is not written. An author who was deleted since has no id:
-- the foreign key refuses 0.
with given as materialized (
    select
        book_id,
        coalesce((select id from authors where authors.name = sent.name), 0) as author_id,
        min(position) as position
    from json_to_recordset(%(author_links)s::json)
        as sent (book_id bigint, name text, position int)
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
    select
        book_id,
        coalesce((select id from genres where genres.name = sent.name), 0) as genre_id,
        min(position) as position
    from json_to_recordset(%(genre_links)s::json)
        as sent (book_id bigint, name text, position int)
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
