-- Views that revision 0003 changes: what ended an answer, what it was sampled with, which of its tokens may
-- teach. This file is never edited: a change is a new file and a migration.

create or replace view turn as
select t.id, t.tenant, t.session_id, t.segment_id, t.parent_id, t.ordinal, t.kind, t.kind_reason,
       t.session_source, t.endpoint, t.stream, t.model, t.engine, t.status, t.error, t.http_status,
       turn_messages(t.id) as messages, turn_tools(t.tenant, t.period, t.tools_hash) as tools, t.sampling,
       t.response_text, t.reasoning_text, t.tool_calls, t.finish_reason, t.choice_index, t.usage,
       case when t.base_tokens = 0 then t.prompt_ids else turn_prompt_ids(t.id) end as prompt_ids,
       t.response_ids, t.response_logprobs, t.capture, t.sampling_class, t.trainable, t.untrainable_reason,
       p.name as policy, t.policy_version_min, t.policy_version_max, t.client_request_id, t.started_at,
       t.first_token_at, t.finished_at, t.prefix_ok,
       t.stopped_by, t.temperature, t.sampling_defaults, t.trained_tokens
from turns t
left join policies p on p.id = t.policy_id;

-- The score that counts: feedback, then the newest judge, then lineage.
create or replace view trajectory as
select t.tenant, t.session_id, t.segment_id, t.id as turn_id, t.parent_id, t.ordinal, t.choice_index,
       t.status, s.stage, s.reason, s.next_turn_id, sc.value as score, sc.reason as score_reason, sc.judge,
       sc.rubric, sc.hint, sa.batch_id, sa.reward, sa.baseline, sa.advantage, sa.staleness,
       t.prompt_tokens, cardinality(t.response_ids) as response_tokens,
       case when t.base_tokens = 0 then t.prompt_ids else turn_prompt_ids(t.id) end as prompt_ids,
       t.response_ids, t.response_logprobs, p.name as policy, t.policy_version_min, t.policy_version_max,
       t.started_at, t.trained_tokens
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
create or replace view progress as
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
           when s.stage = 'dropped' and s.reason in ('side', 'endpoint', 'unreadable') then 2
           else 3
       end as position
from turn_states s
left join samples sa on sa.turn_id = s.turn_id;

-- `seen` adds what Postgres refused (`set_aside`). What still lies in the spool is not here yet.
-- A request whose records are set aside has a row too where its id was plausible: it is counted once.
create or replace view funnel as
with reached as (
    select position, count(*) as turns from progress group by position
    union all
    select 1, count(*) from set_aside a
    where not exists (select from turn_states s where s.turn_id = a.id)
)
select f.position, f.stage, coalesce(sum(r.turns), 0)::bigint as turns
from funnel_stage f
left join reached r on r.position >= f.position
group by f.position, f.stage
order by f.position;

-- Where turns stand and why: `stage` is the last funnel stage that they reached; a NULL reason waits its turn.
create or replace view funnel_reason as
with standing as (
    select position, reason, count(*) as turns
    from progress
    where stage <> 'trained'
    group by position, reason
    union all
    select 1, 'set_aside', count(*)
    from set_aside a
    where not exists (select from turn_states s where s.turn_id = a.id)
    having count(*) > 0
)
select f.stage, s.reason, s.turns
from standing s
join funnel_stage f using (position)
order by f.position, s.turns desc, s.reason;

-- Two answers to one prompt, of which one was wanted: the user went on from a regenerated one, or somebody
-- corrected it (then `chosen_turn_id` is NULL: nobody served that answer).
-- Two answers that read the same are no choice between them.
create or replace view preference as
select r.tenant, r.session_id, r.messages, r.tools, r.id as rejected_turn_id, r.response_text as rejected,
       c.id as chosen_turn_id, c.response_text as chosen, 'regenerated' as because
from turn r
join turns rt on rt.id = r.id and rt.kind = 'main' and rt.prompt_hash is not null
join turns c on c.tenant = rt.tenant and c.prompt_hash = rt.prompt_hash and c.session_id = rt.session_id
            and c.kind = 'main' and c.id <> rt.id and (c.history_hash = rt.history_hash) is not true
where exists (select from turns n where n.parent_id = c.id and n.kind = 'main')
  and not exists (select from turns n where n.parent_id = rt.id and n.kind = 'main')
union all
select d.tenant, d.session_id, d.messages, d.tools, d.turn_id, t.response_text, null, d.answer, 'corrected'
from demonstration d
join turns t on t.id = d.turn_id;
