-- Years that only another time zone has are taken for the first and the last that all have.
with page as (
    insert into api_keys (name, scopes, expires_at, prefix, hash)
    select
        name, scopes,
        case when expires_at is not null
            then least(greatest(expires_at, '0001-01-01Z'), '9999-12-31 23:59:59.999999Z') end,
        prefix, decode(hash, 'hex')
    from rows from (json_to_recordset(%(items)s::json)
        as (name text, scopes text[], expires_at timestamptz, prefix text, hash text)) with ordinality
        as given (name, scopes, expires_at, prefix, hash, position)
    order by position
    returning *
)
