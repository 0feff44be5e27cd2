-- Two are forgotten for each that is kept: the table cannot outgrow a day.
delete from idempotency_keys where key in (
    select key from idempotency_keys where created_at <= now() - interval '24 hours'
    order by created_at limit 2 for update skip locked
);

-- One that is there is a day old: nobody found it.
insert into idempotency_keys (key, request, answer) values (%(key)s, %(request)s, %(answer)s)
on conflict (key) do update
set request = excluded.request, answer = excluded.answer, created_at = excluded.created_at
