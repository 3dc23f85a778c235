-- Views of revision 0001: a contract that stays when tables change. A view comes after those it reads.
-- This file is never edited: a change is a new file and a migration. A replaced view only gains columns,
-- behind those that it has, so that other views may go on reading it.

create view turn as
select t.id, t.tenant, t.session_id, t.segment_id, t.parent_id, t.ordinal, t.kind, t.kind_reason,
       t.session_source, t.endpoint, t.stream, t.model, t.engine, t.status, t.error, t.http_status,
       turn_messages(t.id) as messages, turn_tools(t.tenant, t.period, t.tools_hash) as tools, t.sampling,
       t.response_text, t.reasoning_text, t.tool_calls, t.finish_reason, t.choice_index, t.usage,
       case when t.base_tokens = 0 then t.prompt_ids else turn_prompt_ids(t.id) end as prompt_ids,
       t.response_ids, t.response_logprobs, t.capture, t.sampling_class, t.trainable, t.untrainable_reason,
       p.name as policy, t.policy_version_min, t.policy_version_max, t.client_request_id, t.started_at,
       t.first_token_at, t.finished_at, t.prefix_ok
from turns t
left join policies p on p.id = t.policy_id;

-- A session's messages in the order in which they came: what each main turn added to its parent's history,
-- then its answer. A regenerated answer stands beside its sibling, and does not repeat the question.
create view conversation as
select t.tenant, t.session_id, t.segment_id, t.id as turn_id, t.choice_index,
       row_number() over (partition by t.tenant, t.session_id order by t.started_at, t.request_id, m.n, t.id)
           as position,
       m.part, m.role, m.content, m.message, t.started_at as at
from turns t
cross join lateral (
    select coalesce(turn_messages(t.id), '[]') as list
) l
cross join lateral (
    select a.n, 'request' as part, a.body->>'role' as role,
           case json_typeof(a.body) when 'object' then a.body->>'content' else a.body #>> '{}' end as content,
           a.body as message
    from json_array_elements(l.list) with ordinality as a(body, n)
    where a.n > coalesce(t.parent_messages, 0) and t.choice_index = 0 and not exists (
        select from turns e
        where e.tenant = t.tenant and e.prompt_hash = t.prompt_hash and e.session_id = t.session_id
          and e.kind = 'main' and e.choice_index = 0 and e.id < t.id)
    union all
    select json_array_length(l.list) + 1, 'answer', 'assistant', t.response_text,
           json_strip_nulls(json_build_object('role', 'assistant', 'content', t.response_text,
               'reasoning_content', t.reasoning_text, 'tool_calls', t.tool_calls))
    where t.response_text is not null or t.tool_calls is not null
) m
where t.kind = 'main';

-- The score that counts: feedback, then the newest judge, then lineage.
create view trajectory as
select t.tenant, t.session_id, t.segment_id, t.id as turn_id, t.parent_id, t.ordinal, t.choice_index,
       t.status, s.stage, s.reason, s.next_turn_id, sc.value as score, sc.reason as score_reason, sc.judge,
       sc.rubric, sc.hint, sa.batch_id, sa.reward, sa.baseline, sa.advantage, sa.staleness,
       t.prompt_tokens, cardinality(t.response_ids) as response_tokens,
       case when t.base_tokens = 0 then t.prompt_ids else turn_prompt_ids(t.id) end as prompt_ids,
       t.response_ids, t.response_logprobs, p.name as policy, t.policy_version_min, t.policy_version_max,
       t.started_at
from turns t
join turn_states s on s.turn_id = t.id
left join policies p on p.id = t.policy_id
left join samples sa on sa.turn_id = t.id
left join lateral (
    select * from scores where turn_id = t.id
    order by (reason is not distinct from 'feedback') desc, value is null,
             (reason is not distinct from 'regenerated'), created_at desc, judge, rubric
    limit 1
) sc on true
where t.kind = 'main';

-- How far each turn came, as the position of the last funnel stage that it reached. Only the narrow tables are
-- read. A stage that is reached counts those before it as reached: feedback scores turns without a next state,
-- and an engine that loaded a later version has published what made the earlier ones.
create view progress as
select s.turn_id, s.stage, s.reason,
       case
           when s.stage = 'trained' and exists (
               select from steps st
               join publications pu on pu.policy_id = st.policy_id and pu.version >= st.version
               where st.batch_id = sa.batch_id and pu.status = 'loaded') then 9
           when s.stage = 'trained' then 8
           when sa.turn_id is not null then 7
           when s.stage in ('scored', 'batched') then 6
           when exists (select from scores sc where sc.turn_id = s.turn_id and sc.value is not null) then 5
           when s.next_turn_id is not null or s.stage = 'scorable' then 4
           when s.stage = 'dropped' and s.reason in ('side', 'endpoint') then 2
           else 3
       end as position
from turn_states s
left join samples sa on sa.turn_id = s.turn_id;

create view funnel_stage as
select * from (values
    (1, 'seen'), (2, 'recorded'), (3, 'main'), (4, 'next state'), (5, 'scored'), (6, 'counted'),
    (7, 'in a batch'), (8, 'trained'), (9, 'published')) as f(position, stage);

-- `seen` adds what Postgres refused (`set_aside`). What still lies in the spool is not here yet.
create view funnel as
with reached as (
    select position, count(*) as turns from progress group by position
    union all
    select 1, count(*) from set_aside
)
select f.position, f.stage, coalesce(sum(r.turns), 0)::bigint as turns
from funnel_stage f
left join reached r on r.position >= f.position
group by f.position, f.stage
order by f.position;

-- Where turns stand and why: `stage` is the last funnel stage that they reached; a NULL reason waits its turn.
create view funnel_reason as
with standing as (
    select position, reason, count(*) as turns
    from progress
    where stage <> 'trained'
    group by position, reason
    union all
    select 1, 'set_aside', count(*) from set_aside having count(*) > 0
)
select f.stage, s.reason, s.turns
from standing s
join funnel_stage f using (position)
order by f.position, s.turns desc, s.reason;

-- Sums are NULL where nothing is known; unknown_prices tells how many calls cost_usd leaves out.
create view cost as
select purpose, model, (created_at at time zone 'UTC')::date as day, count(*) as calls,
       sum(prompt_tokens)::bigint as prompt_tokens, sum(completion_tokens)::bigint as completion_tokens,
       sum(cost_usd) as cost_usd, count(*) filter (where cost_usd is null) as unknown_prices
from calls
group by purpose, model, day;

-- A turn that spans a change of weights was served by each version of its span. Turn ids sort by time.
create view version as
with served as (
    select t.policy_id, v.version, (array_agg(t.id order by t.id))[1] as first_turn,
           (array_agg(t.id order by t.id desc))[1] as last_turn, count(*) as turns
    from turns t
    cross join lateral generate_series(t.policy_version_min, t.policy_version_max) as v(version)
    group by t.policy_id, v.version
)
select p.name as policy, v.version, v.parent, v.status, v.reason,
       (select count(*) from samples sa where sa.batch_id = v.batch_id) as samples,
       array(select distinct pu.engine from publications pu
             where pu.policy_id = v.policy_id and pu.version = v.version and pu.status = 'loaded'
             order by pu.engine) as published_engines,
       s.first_turn as first_served_turn, s.last_turn as last_served_turn,
       coalesce(s.turns, 0) as turns_served,
       v.created_at, v.live_at
from versions v
join policies p on p.id = v.policy_id
left join served s on s.policy_id = v.policy_id and s.version = v.version;

-- How an answer should have been, as a chat example for SFT.
create view demonstration as
select d.turn_id, t.tenant, t.session_id, t.messages, t.tools, d.answer, d.source, d.hint, d.created_at
from demonstrations d
join turn t on t.id = d.turn_id;

-- Two answers to one prompt, of which one was wanted: the user went on from a regenerated one, or somebody
-- corrected it (then `chosen_turn_id` is NULL: nobody served that answer).
create view preference as
select r.tenant, r.session_id, r.messages, r.tools, r.id as rejected_turn_id, r.response_text as rejected,
       c.id as chosen_turn_id, c.response_text as chosen, 'regenerated' as because
from turn r
join turns rt on rt.id = r.id and rt.kind = 'main' and rt.prompt_hash is not null
join turns c on c.tenant = rt.tenant and c.prompt_hash = rt.prompt_hash and c.session_id = rt.session_id
            and c.kind = 'main' and c.id <> rt.id
where exists (select from turns n where n.parent_id = c.id and n.kind = 'main')
  and not exists (select from turns n where n.parent_id = rt.id and n.kind = 'main')
union all
select d.tenant, d.session_id, d.messages, d.tools, d.turn_id, t.response_text, null, d.answer, 'corrected'
from demonstration d
join turns t on t.id = d.turn_id;
