with page as (
    update api_keys
    set previous_prefix = prefix,
        previous_hash = hash,
        previous_until = clock_timestamp() + make_interval(secs => %(overlap_s)s),
        prefix = %(prefix)s,
        hash = %(hash)s,
        updated_at = clock_timestamp(),
        version = version + 1
    where id = %(id)s
    returning *
)
