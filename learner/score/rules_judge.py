"""The offline judge's rules: a next state to a verdict. Pure; the words are in phrases.py.

In this order, the first that applies decides:

1. What the user says of the answer, clause by clause: a correction, complaint or refusal is -1, praise is +1.
   Praise with a "but" that leads to a complaint or a change request is -1; praise before a question is +1.
2. A request to change the answer, or the same question again, is -1.
3. Any other user message is a plain follow-up: 0.
4. Tool results without a user message: +1 where none reports an error, else -1.
5. Nothing readable (no text, or a script other than Latin and Chinese): no verdict.

The words that the rules judge goes by, English and Chinese, as data. Matched against folded text (NFKC,
lower case, curly quotes straightened). `^` is the beginning of a sentence or clause.
"""

import re
import unicodedata
from dataclasses import dataclass
from difflib import SequenceMatcher

from learner.score.next_state import TOOL_ROLES, Case, is_error
from learner.text import text_of


@dataclass(frozen=True, slots=True)
class Sign:
    """A kind of evidence in what a user says."""

    reason: str
    value: int
    pattern: re.Pattern[str]


def _sign(reason: str, value: int, *alternatives: str) -> Sign:
    return Sign(reason, value, re.compile("|".join(f"(?:{a})" for a in alternatives)))


#: Said of the answer itself; looked for clause by clause, the first clause that shows one decides.
CORRECTION = _sign(
    "correction",
    -1,
    r"^no\b(?! (problem|worries|need|doubt|complaints|issues?|errors?|more questions)\b)",
    r"\bthe wrong\b",
    r"^(nope|nah|wrong|incorrect|stop|ugh|huh)\b",
    r"^not (like (that|this)|that way|this way)\b",
    r"\b(that|this|it|which|still|also|you|answer|code|result|output)('s| is|'re| are| was| got"
    r"| looks?| seems?)? "
    r"(it |that |this )?(completely |totally |just |simply |plain |still |clearly |also |actually )?"
    r"(wrong|incorrect|not (right|correct|true|accurate|what|how|it\b)|false|broken|useless|outdated"
    r"|nonsense)",
    r"\b(isn't|wasn't|is not|was not|not) (quite |really |at all |even |exactly )?(right|correct|true"
    r"|what i|how i|helpful)",
    r"\b(doesn't|does not|didn't|did not|don't|won't|isn't|still not|not) (actually |even |really )?"
    r"(work|compile|run|build|answer|help|make sense|match|listen|working|compiling|load|parse)",
    r"\b(you|u) (missed|forgot|misunderstood|misread|ignored|skipped|left out|overlooked|broke"
    r"|made (a |an )?(mistake|error)"
    r"|didn't|did not|haven't|keep|kept|mixed up|got .{1,30} wrong|made (that|this|it) up)",
    r"\bi (said|asked( you)? (for|to)|meant|wanted|told you|already (said|told)|explicitly|was asking"
    r"|didn't ask)\b",
    r"\b(still|now i) (get|getting|got|see|seeing|have|throws?|fails?|crash\w*) ",
    r"\b(still|unfortunately|sadly) (it |this |that )?(still |just )?\w+s\b|^(unfortunately|sadly)\b",
    r"\b(is|are|was|were)(n't| not) (in|on|from|there|a|an|part of|using|mine|even)\b",
    r"\bi('m| am) not (using|asking|sure (that|this) is)\b|\bi (already|have already|had already)\b"
    r"|\b(tried|did) that already\b",
    r"\b(there (is|are|'s)) (already|no)\b|\b(does not|doesn't|do not|don't) exist\b|\bno such\b"
    r"|\b(can't|cannot) be (right|true)\b",
    r"\b(are you sure|says? otherwise|made no difference|changes? nothing|nothing changed|no effect"
    r"|got (even )?(worse|slower))\b",
    r"\bi (don't|do not|didn't) (like|want|need|understand|agree|think so|see (it|that|any))\b"
    r"|\b(misses|missing|lacks) the\b",
    r"\byour (fault|mistake)\b|\b(broke|breaks|ruined|messed up) (the|my|it|everything)\b|^(boring|bad"
    r"|lame|meh|weak)\b",
    r"\b(get|getting|got|gives? me|throws?|raises) (a|an|the|this) (\w+ )?(error|exception|warning)\b",
    r"\bsame (error|problem|issue|result|mistake)\b",
    r"^(it|this|that) (fails|failed|crashes|crashed|throws|hangs|breaks)\b",
    r"\b(terrible|awful|horrible|disappoint\w*|bad answer|not good|not helpful|unhelpful"
    r"|makes no sense|hallucinat\w*)\b",
    r"\b(too (long|short|vague|formal|informal|complicated|complex|generic|wordy|verbose|technical"
    r"|simple|slow|dark))\b",
    r"\bwhy (did|would|are|do) you (not |still |just |keep |even )?"
    r"(delete|remove|change|ignore|add|skip|use|write|refuse|keep|make)",
    r"^(不对|不是|错了|错误|不行|不正确|不准确|不好|不可以|不要|别|没有?用|不能用|停|你错|瞎说|胡说)",
    r"(答错|说错|写错|算错|发错|译错|搞错|弄错|理解错|翻译错|有误|有问题|不对|不正确|不准确|没用"
    r"|没有用|没帮助"
    r"|看不懂|文不对题|答非所问"
    r"|跑不通|跑不起来|不起作用|不管用|没解决|没有解决|没生效|没有回答|没回答|编造|乱编|乱写|太差|太烂"
    r"|离谱|失望|一样的(错误|问题))",
    r"(还是|仍然|依然|又)(报错|不行|失败|出错|不对|错|一样|没|不能|不工作|崩)",
    r"(我(说|要|问|指|想要|想问)的(是|不是)|我不是(说|要|问|想)|我明明|我都说了|我没(让|叫|要)你"
    r"|你(没有?|漏|忘|又|误解|忽略|为什么(删|改|不)))",
    r"[你我他它这那].{0,6}(发错|弄丢|没翻|没写|没说|没按|没看|没有(在|说|用|写|按|看))|怎么(还是|又"
    r"|把)|[^没不]错了?吧?$|根本",
    r"(第.{1,3}|这|那)(个|本|句|条|段|些|首|篇)?(不是|都不|并不)|不存在|不够|听不懂|不理解|不喜欢"
    r"|不满意|都看过|已经(试|看|用|做)过",
    r"^(这|那|都|也)?不是|像机器|没有亮点|都?太(老|旧|普通|夸张|难|贵|多|少|大|小|乱)",
    r"太(长|短|啰嗦|罗嗦|笼统|正式|复杂|简单|官方|生硬|慢|模糊|泛|空)",
)
PRAISE = _sign(
    "praise",
    1,
    r"\b(thanks|thank you|thankyou|thx|ty|cheers|appreciate|much obliged)\b",
    r"^(oh |ok |okay |ah |yes |yeah |wow |haha |and |so |that's |that is |this is |this was |that was "
    r"|it's |looks? |you're |"
    r"absolutely |really |very |just |pretty |super |much |all )*"
    r"(perfect|great|awesome|excellent|amazing|wonderful|fantastic|brilliant|lovely|nice|cool|superb"
    r"|impressive|neat|good"
    r"|beautiful|spot on|exactly( right| what)?|correct|right on|well done|better|a lifesaver|helpful"
    r"|good job|love it)\b"
    r"(?! (question|point of|luck|idea would|morning|evening|night))",
    r"^(yes|yep|yeah|right|ah|aha|oh|ok|okay) ?(that|this)?('s| is| was)? (it|the (problem|issue|cause"
    r"|reason|one))\b",
    r"\b(that|this|it) (was|is|'s) (the (problem|issue|cause|reason)|great|perfect|fast now|fixed"
    r"|solved|fine now)\b",
    r"\b(solved|fixed)( it)?$|^(solved|fixed|sorted)\b|\bsounds (good|great)\b|\b(saved me|you're (a"
    r"|an|the) (star|legend|best|genius))",
    r"\bi (really |quite |do )?(like|love) (it|this|that|the)\b|\b(10/10|100%|5 stars|10 out of 10)"
    r"|^so (good|pretty|nice|cool|clear)\b",
    r"\b(works|worked|working) (perfectly|great|fine|well|now|like a charm|as expected|beautifully|for me)\b",
    r"\b(it|that|this)( all)? (works|worked|helps|helped|fixed it|did it|did the trick|solved it"
    r"|makes sense)\b",
    r"\b(makes sense|got it|i love|love (it|this|that)|loving it|just what i|exactly what i"
    r"|very helpful|so helpful"
    r"|really helpful|super helpful|you're right|that's right|problem solved|tests pass|all green"
    r"|not bad|no complaints"
    r"|looks good|lgtm|ship it|well explained|clear explanation|saved my)\b",
    r"^(对|没错|对的|是的|赞|棒|好评|完全正确)$|(正合|就用|就是这|就这样|帮大忙|懂我|地道|专业"
    r"|通顺|流畅|清晰|满意|真快|好推荐|没错|点赞)",
    r"(谢谢|多谢|感谢|谢啦|谢了|辛苦了|3q|太感谢)",
    r"^(哇|嗯|哦|好的|好|对|是的|这个|这|你|写得|讲得|说得|翻译得|解释得|真|非常|太|很|已经|可以|,| )*"
    r"(太棒|很棒|真棒|棒极|完美|太好了|很好|真好|非常好|不错|厉害|牛|赞|优秀|漂亮|清楚|明白了|懂了"
    r"|学到了|好用|好多了|有帮助"
    r"|有用|到位|正是|就是我|喜欢|满意|搞定|解决了|成功了|通过了|没问题|正确|对了|说得对|有道理|可以了"
    r"|好了|行了|跑通了|能用了)",
)
#: Asks for the answer to be made differently.
CHANGE = _sign(
    "change request",
    -1,
    r"\b(re-?write|re-?do|re-?phrase|re-?word|re-?generate|re-?format|shorten|simplify|try again"
    r"|once more|one more time)\b",
    r"\b(make|keep|have) (it|this|that|them|the \w+)( \w+)? "
    r"(shorter|longer|simpler|clearer|shorter|more|less|sound|look|funnier|faster|brief|smaller|bigger"
    r"|in |a bit|a little|not )",
    r"^(please |now |could you |can you |and )*(shorter|longer|simpler|less|more (formal|casual"
    r"|detail\w*|concise|specific))\b",
    r"\b(change|replace|swap|convert|turn|fix|correct|undo|revert|remove|drop|delete|get rid of|cut) "
    r"(it|this|that|them|the|your|all|those|these|my \w+ back)\b",
    r"\b(instead of|instead|rather than|without (the|any|using)|don't use|do not use|not use"
    r"|stop using|use \w+ not)\b",
    r"\b(do|say|write|explain|answer|phrase) (it|this|that) (again|differently|another way)\b|^again\b"
    r"|^(in|into) \w+,? please\b",
    r"\b(please|just) (use|be|keep|write|add|include|avoid|stick)\b|^no \w+,? please\b"
    r"|\bmore (specific|precise|concise|concrete)\b",
    r"\bi (want|wanted|need|needed|prefer|expected|would prefer)\b.{0,30}\b(instead|not|only|just)\b"
    r"|^not (so|that|too) \w+",
    r"\b(simpler|shorter|easier|plainer|fewer) (words|sentences|terms|language|version|bullets|lines)\b",
    r"\b(a different|another|some other) (one|version|approach|way|answer|example|title|option|name|idea)\b",
    r"\b(be|sound) (more|less) \w+",
    r"\b(can|could|would) you (be|make|explain (it|that|this) (more|again|simpl|in)|say (it"
    r"|that) (again|simpl|differ))",
    r"(重写|重新|改写|改成|改为|改一下|改得|修改|换成|换一个|换个|换一种|换种|缩短|精简|简化|压缩|润色"
    r"|再写一?(?:遍|次|版)|再来一|再试|再生成|重来|重做"
    r"|去掉|删掉|删除|撤销|恢复|修一下|修复一下|调整一下|纠正|更正)",
    r"(更|再)(短|长|简单|简洁|详细|具体|正式|口语|通俗|随意|自然|友好|幽默|清楚|准确)(一?点|一?些)?",
    r"(短|长|简单|简洁|详细|具体|正式|口语化|通俗|随意|自然|幽默)(一点|点儿|一些|点)",
    r"(简洁|精炼|简短|口语|自然|简单|具体|详细)(一?些|一?点|一?下)|换(几|一|个|些|下)|请(用|以|改|写"
    r"|说|加|把|给我)|^(不要|别)|^加(上|入|一|个)|要看",
    r"(不要用|别用|不用|不要写|别写|不要加|别加|而不是)",
    r"(用|以).{1,8}(再说|再讲|再解释|重讲)",
)
#: The user will not have the answer.
REFUSAL = _sign(
    "refused",
    -1,
    r"\b(never mind|nevermind|forget it|i give up|i'll do it myself|i'll ask someone else"
    r"|this is (pointless|useless)|waste of time)\b",
    r"(算了|不用了|我自己来|我放弃|浪费时间|问别人|没法用)",
)
CONTRAST = re.compile(
    r"^(?:but|however|except|though|although|only|yet|但是?|可是|不过|然而|只是|就是)\b|^(但|可是|不过"
    r"|然而|只是)"
)
CLAUSE = re.compile(
    r"[.!?;:,。！？；：，、~～…\n]+\s*|\s+[-—–]+\s+|\s+(?=(?:but|however|though)\b)|(?=但是|但|不过"
    r"|可是|然而)"
)
"""Where one clause ends and the next begins."""


RULES = "rules@1"
OPENING_CLAUSES = 8  # what a user thinks of an answer comes first; pasted material comes later
SAME_QUESTION = 0.86  # likeness (difflib's ratio) from which a question is the same one
SHORTEST_QUESTION = 6  # characters; shorter texts are alike by chance
COMPARED_CHARACTERS = 400

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.S)
_QUOTE = re.compile(r"^\s*>.*$", re.M)


@dataclass(frozen=True, slots=True)
class Verdict:
    value: int | None  # -1, 0, 1; None: cannot tell
    reason: str


def verdict(case: Case) -> Verdict:
    """What the next state says of the answer."""
    said = "\n".join(text_of(m) for m in case.next_state if m["role"] == "user").strip()
    if said:
        return of_user(said, case.asked)
    results = [message for message in case.next_state if message["role"] in TOOL_ROLES]
    if not results:
        return Verdict(None, "nothing to read")
    failed = sum(map(is_error, results))
    return (
        Verdict(-1, f"{failed} of {len(results)} tool results failed") if failed else Verdict(1, "tools ran")
    )


def of_user(said: str, asked: str) -> Verdict:
    """What a user's message says of the answer to `asked`."""
    text = fold(_QUOTE.sub(" ", _CODE.sub(" ", said)))
    if not _readable(text):
        return Verdict(None, "no English or Chinese text")
    clauses = [clause for piece in CLAUSE.split(text) if (clause := piece.strip(" \"'()-*"))]
    opinion = _opinion(clauses[:OPENING_CLAUSES])
    if opinion is not None:
        return opinion
    if CHANGE.pattern.search(text[:COMPARED_CHARACTERS]):
        return Verdict(CHANGE.value, CHANGE.reason)
    if same_question(text, fold(asked)):
        return Verdict(-1, "asked again")
    return Verdict(0, "plain follow-up")


def fold(text: str) -> str:
    """One spelling: compatibility forms, case and quotes."""
    return unicodedata.normalize("NFKC", text).translate(_STRAIGHT).casefold().strip()


def same_question(text: str, asked: str) -> bool:
    """Whether two folded texts are one question, but for a few characters."""
    left, right = text[:COMPARED_CHARACTERS], asked[:COMPARED_CHARACTERS]
    if min(len(left), len(right)) < SHORTEST_QUESTION:
        return False
    return left == right or SequenceMatcher(None, left, right, autojunk=False).ratio() >= SAME_QUESTION


def _opinion(clauses: list[str]) -> Verdict | None:
    praised: Verdict | None = None
    contrast = False
    for clause in clauses:
        contrast = contrast or CONTRAST.match(clause) is not None
        # "not bad", "no complaints": praise that is spelt with a complaint's words.
        praise = PRAISE.pattern.search(clause)
        signs = (REFUSAL, CORRECTION, CHANGE) if contrast else (REFUSAL, CORRECTION)
        found = next((sign for sign in signs if sign.pattern.search(clause)), None)
        if found is not None and not praise and (praised is None or contrast):
            return Verdict(found.value, found.reason)
        if praise and praised is None:
            praised = Verdict(PRAISE.value, PRAISE.reason)
    return praised


def _readable(text: str) -> bool:
    letters = [c for c in text if c.isalpha()]
    known = sum(c.isascii() or "\u00c0" <= c <= "\u024f" or "\u4e00" <= c <= "\u9fff" for c in letters)
    return bool(letters) and known * 2 > len(letters)
