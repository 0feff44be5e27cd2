select id, scopes, case prefix when %(prefix)s::text then hash else previous_hash end
from api_keys
where (prefix = %(prefix)s::text or (previous_prefix = %(prefix)s::text and previous_until > now()))
    and (expires_at is null or expires_at > now())
