create table books (
    id bigint generated always as identity primary key,
    title text not null check (length(title) between 1 and 500),
    published date,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create table authors (
    id bigint generated always as identity primary key,
    name text not null check (length(name) between 1 and 200),
    constraint authors_name_unique unique (name)
);

create table genres (
    id bigint generated always as identity primary key,
    name text not null check (length(name) between 1 and 200),
    constraint genres_name_unique unique (name)
);

create table book_authors (
    book_id bigint not null references books on delete cascade,
    author_id bigint not null references authors,
    position int not null,
    primary key (book_id, author_id)
);
create index book_authors_author on book_authors (author_id);

create table book_genres (
    book_id bigint not null references books on delete cascade,
    genre_id bigint not null references genres,
    position int not null,
    primary key (book_id, genre_id)
);
create index book_genres_genre on book_genres (genre_id);

create table agents (
    id bigint generated always as identity primary key,
    name text not null check (length(name) between 1 and 200),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint agents_name_unique unique (name)
);

create table tasks (
    id bigint generated always as identity primary key,
    agent_id bigint not null references agents on delete cascade,
    title text not null check (length(title) between 1 and 500),
    status text not null check (status in ('pending', 'running', 'done', 'failed')),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index tasks_agent on tasks (agent_id);
