"""Pydantic AI's own examples (hello world, the dice game, streaming). Run by test_gateway_clients.py in an
environment that has pydantic-ai; nothing here knows of Dukou. `openai-chat:` is its name for the chat API."""

import asyncio
import random

from pydantic_ai import Agent, RunContext

agent = Agent("openai-chat:gpt-5.2", instructions="Be concise, reply with one sentence.")
result = agent.run_sync('Where does "hello world" come from?')
print(result.output)

dice_agent = Agent(
    "openai-chat:gpt-5.2",
    deps_type=str,
    instructions=(
        "You're a dice game, you should roll the die and see if the number "
        "you get back matches the user's guess. If so, tell them they're a winner. "
        "Use the player's name in the response."
    ),
)


@dice_agent.tool_plain
def roll_dice() -> str:
    """Roll a six-sided die and return the result."""
    return str(random.randint(1, 6))


@dice_agent.tool
def get_player_name(ctx: RunContext[str]) -> str:
    """Get the player's name."""
    return ctx.deps


print(dice_agent.run_sync("My guess is 4", deps="Anne").output)


async def main() -> None:
    async with agent.run_stream("What is the capital of the UK?") as response:
        async for text in response.stream_text():
            print(text)


asyncio.run(main())
