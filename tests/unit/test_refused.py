"""What providers answer when they refuse: which of it is final, and how long the rest lasts."""

import json
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.llm.refused import SPENT, is_spent, wait
from tests.unit.test_gate import NOON

GEMINI = {
    "code": 429,
    "message": "You exceeded your current quota, please check your plan and billing details. For more "
    "information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.",
    "status": "RESOURCE_EXHAUSTED",
    "details": [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [
                {
                    "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_input_token",
                    "quotaId": "GenerateContentInputTokensPerModelPerMinute-FreeTier",
                    "quotaValue": "250000",
                }
            ],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"},
    ],
}
QUOTA = "You exceeded your current quota, please check your plan and billing details."
OPENAI_TPM = (
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 14567, "
    "Requested 24754. Please try again in 18.642s. Visit https://platform.openai.com/account/rate-limits"
)
AZURE = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-02-01 have "
    "exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 60 seconds. Please "
    "go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit."
)
ANTHROPIC = (
    "Number of concurrent connections has exceeded your rate limit. Please try again later or contact sales "
    "at https://www.anthropic.com/contact-sales to discuss your options for a rate limit increase."
)
CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
    "purchase credits."
)
CONCURRENCY = "High concurrency usage of this API, please reduce concurrency or contact customer service"
CLIENT = "Too many concurrent requests for this client. Retry after 10 seconds."
OVERDUE = "Insufficient balance or no resource package. Please recharge."


def error(message, **more):
    return {"error": {"message": message, **more}}


@pytest.mark.parametrize(
    ("status", "body", "seconds"),
    [
        (429, {"error": GEMINI}, "26.0"),
        (429, [{"error": GEMINI}], "26.0"),  # its OpenAI-compatible address
        (429, {"error": {"code": 429, "message": QUOTA, "status": "RESOURCE_EXHAUSTED"}}, None),
        (429, error(f"{QUOTA} Please retry in 26.1s.", code=429, status="RESOURCE_EXHAUSTED"), "26.1"),
        (429, error(OPENAI_TPM, type="tokens", param=None, code="rate_limit_exceeded"), "18.642"),
        (429, error("Please try again in 6ms.", type="tokens", code="rate_limit_exceeded"), "0.006"),
        (429, error("Please try again in 7m12s.", type="requests", code="rate_limit_exceeded"), "432.0"),
        (429, error(AZURE, code="429"), "60.0"),
        (429, {"type": "error", "error": {"type": "rate_limit_error", "message": ANTHROPIC}}, None),
        (429, error(CONCURRENCY, code="1302"), None),
        (429, error("该模型当前访问量过大，请您稍后再试", code="1305"), None),
        (
            429,
            error("Concurrency limit exceeded for user, please retry later", type="rate_limit_error"),
            None,
        ),
        (429, error("concurrency quota exceeded", type="rate_limit_error"), None),
        (429, error(CLIENT, type="rate_limit_error", code="concurrent_request_limit_exceeded"), "10.0"),
        (429, error("busy", code="concurrent_request_limit_exceeded", retry_after=10), "10.0"),
        (429, error(OVERDUE, code="other"), None),  # words alone
        (429, error(CREDIT, type="rate_limit_error"), None),
        (429, "Too many concurrent requests. Limit: 1 concurrent requests", None),
        (429, "insufficient_quota", None),
    ],
)
def test_a_wait_is_no_empty_account_whatever_words_say_so(status, body, seconds):
    text = body if isinstance(body, str) else json.dumps(body)
    assert not is_spent(status, text)
    assert wait({}, text) == seconds


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, error(QUOTA, type="insufficient_quota", param=None, code="insufficient_quota")),
        (429, error(QUOTA, type="insufficient_quota", param=None, code=None)),
        (429, error("Your account is not active", type="billing_not_active", code="billing_not_active")),
        (400, error("Billing hard limit has been reached", code="billing_hard_limit_reached")),
        (429, error("您的账户已欠费，请充值后重试。", code="1113")),
        (429, {"type": "error", "error": {"type": "1113", "message": OVERDUE}, "request_id": "2025"}),
        (429, {"type": "error", "error": {"type": "rate_limit_error", "code": "1113", "message": OVERDUE}}),
        (429, error("Your account is suspended", type="exceeded_current_quota_error")),
        (402, error("Insufficient Balance", type="unknown_error", code="invalid_request_error")),
        (402, ""),
        (400, error("Insufficient Balance", type="unknown_error", code="invalid_request_error")),
        (400, {"type": "error", "error": {"type": "invalid_request_error", "message": CREDIT}}),
        (429, error("Budget has been exceeded! Current cost: 2, Max budget: 1", type="budget_exceeded")),
        (400, error("Budget has been exceeded! Current cost: 2, Max budget: 1", type="auth_error", code=400)),
        (400, {"code": "Arrearage", "message": "Access denied, account is not in good standing."}),
    ],
)
def test_a_code_that_means_spent_is_final(status, body):
    assert is_spent(status, body if isinstance(body, str) else json.dumps(body))


def test_what_the_headers_say_comes_before_what_the_text_says():
    text = json.dumps(error(OPENAI_TPM))
    assert wait({"retry-after": "3"}, text) == "3"
    assert wait({"retry-after-ms": "1500", "retry-after": "2"}, text) == "1.5"
    assert wait({"retry-after": format_datetime(NOON)}, text) == format_datetime(NOON)
    assert wait({"retry-after-ms": "soon"}, text) == "18.642"


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, '{"error": "quota"}', '{"error": [7, null]}'])
def test_whatever_stands_in_a_reply_is_read(text):
    assert not is_spent(429, text)
    assert wait({}, text) is None


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.sampled_from([*sorted(SPENT), "retry in 5 s"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "details", "code", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(_JSON)
def test_only_a_typed_field_is_final(body):
    def typed(value):
        if isinstance(value, list):
            return any(map(typed, value))
        if not isinstance(value, dict):
            return False
        own = str(value.get("code")).casefold() in SPENT and not isinstance(value.get("code"), list | dict)
        return own or any(typed(value.get(name)) for name in ("error", "details"))

    assert is_spent(429, json.dumps(body)) == typed(body)
