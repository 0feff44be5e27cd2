select exists (select from api_keys where expires_at is null or expires_at > now())
