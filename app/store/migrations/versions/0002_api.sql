alter table books
    add column version bigint not null default 1 check (version >= 1),
    add check (published between date '0001-01-01' and date '9999-12-31');
alter table authors
    add column created_at timestamptz not null default now(),
    add column updated_at timestamptz not null default now(),
    add column version bigint not null default 1 check (version >= 1);
alter table genres
    add column created_at timestamptz not null default now(),
    add column updated_at timestamptz not null default now(),
    add column version bigint not null default 1 check (version >= 1);
alter table book_authors add check (position between 1 and 50);
alter table book_genres add check (position between 1 and 50);
alter table agents add column version bigint not null default 1 check (version >= 1);
alter table tasks
    add column version bigint not null default 1 check (version >= 1),
    alter column status set default 'pending';

-- A book shows its authors and genres by name: where one gets another name the book is another one.
create function authors_renamed() returns trigger language plpgsql as $$
begin
    update books set version = version + 1, updated_at = clock_timestamp()
    where id in (
        select book_id
        from given
        join former on former.id = given.id and former.name <> given.name
        join book_authors on author_id = given.id
    );
    return null;
end
$$;
create trigger renamed after update on authors
referencing old table as former new table as given
for each statement execute function authors_renamed();

create function genres_renamed() returns trigger language plpgsql as $$
begin
    update books set version = version + 1, updated_at = clock_timestamp()
    where id in (
        select book_id
        from given
        join former on former.id = given.id and former.name <> given.name
        join book_genres on genre_id = given.id
    );
    return null;
end
$$;
create trigger renamed after update on genres
referencing old table as former new table as given
for each statement execute function genres_renamed();

create table idempotency_keys (
    key text primary key check (length(key) between 1 and 400),
    request bytea not null check (length(request) = 32),
    answer text not null,
    created_at timestamptz not null default now()
);
create index idempotency_keys_created_at on idempotency_keys (created_at);

-- Each pair of filter and order of a list has its index (tests/integration/app/test_plans.py). What
-- is found by a name or a title is little, and is sorted.
create index books_title on books (title, id);
create index books_published on books (coalesce(published, 'infinity'), id);
create index books_created_at on books (created_at, id);
create index books_updated_at on books (updated_at, id);
drop index book_authors_author;
create index book_authors_author on book_authors (author_id, book_id);
drop index book_genres_genre;
create index book_genres_genre on book_genres (genre_id, book_id);

create index authors_created_at on authors (created_at, id);
create index authors_updated_at on authors (updated_at, id);
create index genres_created_at on genres (created_at, id);
create index genres_updated_at on genres (updated_at, id);

create index agents_created_at on agents (created_at, id);
create index agents_updated_at on agents (updated_at, id);

create index tasks_title on tasks (title, id);
create index tasks_created_at on tasks (created_at, id);
create index tasks_updated_at on tasks (updated_at, id);
drop index tasks_agent;
create index tasks_agent on tasks (agent_id, id);
create index tasks_agent_title on tasks (agent_id, title, id);
create index tasks_agent_created_at on tasks (agent_id, created_at, id);
create index tasks_agent_updated_at on tasks (agent_id, updated_at, id);
create index tasks_status on tasks (status, id);
create index tasks_status_title on tasks (status, title, id);
create index tasks_status_created_at on tasks (status, created_at, id);
create index tasks_status_updated_at on tasks (status, updated_at, id);


-- A key is found by its prefix and proved by its hash; the previous ones work until then.
create table api_keys (
    id bigint generated always as identity primary key,
    name text not null check (length(name) between 1 and 200),
    scopes text[] not null
        check (scopes <@ array['read', 'write', 'admin'] and cardinality(scopes) between 1 and 3),
    expires_at timestamptz,
    prefix text not null,
    hash bytea not null,
    previous_prefix text,
    previous_hash bytea,
    previous_until timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    version bigint not null default 1 check (version >= 1),
    constraint api_keys_name_unique unique (name),
    constraint api_keys_prefix_unique unique (prefix),
    constraint api_keys_previous_prefix_unique unique (previous_prefix)
);
create index api_keys_created_at on api_keys (created_at, id);
create index api_keys_updated_at on api_keys (updated_at, id);
