select
    page.id,
    page.name,
    page.prefix,
    page.scopes,
    to_char(page.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as expires_at,
    to_char(page.previous_until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        as previous_until,
    to_char(page.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at,
    to_char(page.updated_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as updated_at,
    page.version
from page
