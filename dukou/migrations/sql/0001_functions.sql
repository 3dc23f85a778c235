-- Functions of revision 0001. They put together what is stored once; the views call them, and so may people.
--
-- A turn's row holds what it adds to its base, whose row holds what that adds to its own, down to a row that
-- has everything (a bounded number of steps, all in one partition). Of a base only the first base_messages
-- messages and base_tokens ids count, and of what lies below it no more than that: "cut".
--
-- This file is never edited: a change is a new file and a migration.

create function turn_message_hashes(of_turn uuid) returns bytea language sql stable as $$
with recursive chain(step, base_id, cut, hashes) as (
    select 0, base_id, base_messages, message_hashes from turns where id = of_turn
    union all
    select c.step + 1, b.base_id, least(c.cut, b.base_messages),
           substr(b.message_hashes, 1, 16 * greatest(c.cut - b.base_messages, 0))
    from chain c join turns b on b.id = c.base_id
    where c.cut > 0
)
select string_agg(hashes, ''::bytea order by step desc) from chain
$$;

create function content_body(body bytea, answer_id uuid, answer_at int) returns bytea language sql stable as $$
select case when answer_id is null then body else (
    select substr(body, 1, answer_at) || convert_to(to_json(t.response_text)::text, 'UTF8')
           || substr(body, answer_at + 1)
    from turns t where t.id = answer_id)
end
$$;

-- NULL where the request had no list of messages, or where their text was forgotten.
create function turn_messages(of_turn uuid) returns json language sql stable as $$
select case when count(c.text) = t.message_count then
    ('[' || coalesce(string_agg(c.text, ',' order by n.i), '') || ']')::json end
from turns t
cross join lateral turn_message_hashes(t.id) as h(list)
left join lateral generate_series(0, t.message_count - 1) as n(i) on true
left join lateral (
    select coalesce(readable, convert_from(content_body(body, answer_id, answer_at), 'UTF8')) as text
    from contents
    where tenant = t.tenant and period = t.period and hash = substr(h.list, 1 + 16 * n.i, 16) limit 1
) c on true
where t.id = of_turn
group by t.message_count
$$;

create function turn_tools(of_tenant text, of_period date, of_hash bytea) returns json language sql stable as $$
select coalesce(readable, convert_from(body, 'UTF8'))::json from contents
where tenant = of_tenant and period = of_period and hash = of_hash
$$;

-- Through text: gluing arrays together would copy what is there once for every turn.
create function turn_prompt_ids(of_turn uuid) returns int4[] language sql stable as $$
with recursive chain(step, base_id, cut, piece) as (
    select 0, base_id, base_tokens, prompt_ids from turns where id = of_turn
    union all
    select c.step + 1, b.base_id, least(c.cut, b.base_tokens),
           (b.prompt_ids || b.response_ids)[1 : c.cut - b.base_tokens]
    from chain c join turns b on b.id = c.base_id
    where c.cut > 0
)
select ('{' || string_agg(array_to_string(piece, ','), ',' order by step desc)
        filter (where cardinality(piece) > 0) || '}')::int4[]
from chain
having bool_and(piece is not null)
$$;

-- The exact bytes that the client sent: the tools and the messages go back into the rest, the later one first.
create function turn_request_body(of_turn uuid) returns bytea language sql stable as $$
with part as (
    select t.messages_at, t.tools_at, t.message_count, rest.body as rest, tools.body as tools,
           (select case when count(c.body) = t.message_count then
                        string_agg(c.body, t.messages_joint order by n.i) end
            from generate_series(0, t.message_count - 1) as n(i)
            left join lateral (
                select content_body(body, answer_id, answer_at) as body from contents
                where tenant = t.tenant and period = t.period
                and hash = substr(h.list, 1 + 16 * n.i, 16) limit 1
            ) c on true) as messages
    from turns t
    cross join lateral turn_message_hashes(t.id) as h(list)
    left join contents rest on rest.tenant = t.tenant and rest.period = t.period and rest.hash = t.rest_hash
    left join contents tools
        on tools.tenant = t.tenant and tools.period = t.period and tools.hash = t.tools_hash
    where t.id = of_turn
), cut as (
    select rest, messages_at as at, messages as piece from part where messages_at is not null
    union all
    select rest, tools_at, tools from part where tools_at is not null
), edge as (
    select rest, at, piece, lead(at, 1, length(rest)) over (order by at) as until from cut
)
select case
    when not exists (select from cut) then (select rest from part)
    when (select bool_and(piece is not null) from cut) then
        (select substr(rest, 1, (select min(at) from cut)) from part)
        || (select string_agg(piece || substr(rest, at + 1, until - at), ''::bytea order by at) from edge)
    end
$$;
