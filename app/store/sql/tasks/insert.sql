with page as (
    insert into tasks (agent_id, title, status)
    select agent_id, title, status
    from rows from (
        json_to_recordset(%(items)s::json) as (agent_id bigint, title text, status text)
    ) with ordinality as given (agent_id, title, status, place)
    order by place
    returning *
)
