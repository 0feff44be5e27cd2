update api_keys
set name = given.name,
    scopes = given.scopes,
    expires_at = case when given.expires_at is not null
        then least(greatest(given.expires_at, '0001-01-01Z'), '9999-12-31 23:59:59.999999Z') end,
    updated_at = clock_timestamp(),
    version = api_keys.version + 1
from json_to_recordset(%(items)s::json)
    as given (id bigint, name text, scopes text[], expires_at timestamptz)
where api_keys.id = given.id
