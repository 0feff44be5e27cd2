-- Programs that restore or copy data set session_replication_role to replica, with which an enabled trigger is not
-- called, and one that is always enabled is.
create or replace function announce_writes(is_on boolean) returns void language plpgsql as $$
declare
    changed regclass;
    announces name;
begin
    for changed, announces in
        select tgrelid, tgname
        from pg_trigger join pg_class on pg_class.oid = tgrelid
        where starts_with(tgname, 'announce_') and relnamespace = current_schema()::regnamespace
            and tgenabled <> case when is_on then 'A' else 'D' end
    loop
        execute 'alter table ' || changed || case when is_on then ' enable always' else ' disable' end
            || ' trigger ' || quote_ident(announces);
    end loop;
end
$$;

select announce_writes(true)
where exists (
    select
    from pg_trigger join pg_class on pg_class.oid = tgrelid
    where starts_with(tgname, 'announce_') and relnamespace = current_schema()::regnamespace and tgenabled <> 'D'
);
