-- Ids in the order given, rows in the order of their names: who adds the same ones in another
-- order waits, and neither waits for the other.
with given as materialized (
    select nextval(pg_get_serial_sequence('agents', 'id')) as id, name
    from json_to_recordset(%(items)s::json) as given (name text)
),
page as (
    insert into agents (id, name) overriding system value
    select id, name from given order by name
    returning *
)
