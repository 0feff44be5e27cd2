-- For authors and for genres, whose word is put in: give the books of these ids theirs, making those
-- that are new. Names in one order, so that two transactions which add the same ones cannot wait for
-- each other.
insert into {0}s (name)
select name
from (
    select distinct name from json_to_recordset(%({0}_links)s::json) as link (name text)
) sent
where (select id from {0}s where {0}s.name = sent.name) is null
order by name
on conflict (name) do nothing;

-- A name is looked up by a subquery: the planner does not know how few there are, and a join would
-- read all of them. A link that stays is not written. One that was deleted since has no id: the
-- foreign key refuses 0.
with given as materialized (
    select
        book_id,
        coalesce((select id from {0}s where {0}s.name = sent.name), 0) as {0}_id,
        min(position) as position
    from json_to_recordset(%({0}_links)s::json)
        as sent (book_id bigint, name text, position int)
    group by 1, 2
),
gone as (
    delete from book_{0}s
    where book_id = any(%(ids)s::bigint[])
        and (book_id, {0}_id) not in (select book_id, {0}_id from given)
)
insert into book_{0}s (book_id, {0}_id, position)
select book_id, {0}_id, position from given order by {0}_id, book_id
on conflict (book_id, {0}_id) do update set position = excluded.position
where book_{0}s.position <> excluded.position
