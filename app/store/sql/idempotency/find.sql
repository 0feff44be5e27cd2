select request, answer from idempotency_keys
where key = %(key)s and created_at > now() - interval '24 hours'
