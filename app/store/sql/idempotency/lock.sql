-- 28003: the keys' own class of locks; a collision of hashes tells one of two to try again.
select pg_try_advisory_xact_lock(28003, hashtext(%(key)s))
