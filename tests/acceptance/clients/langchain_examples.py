"""LangChain's own examples (the docstrings of ChatOpenAI, and the agent of its quickstart). Run by
test_gateway_clients.py in an environment that has langchain-openai; nothing here knows of Dukou."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

model = ChatOpenAI(model="gpt-5-nano", temperature=0, max_tokens=None, timeout=None, max_retries=2)

messages = [
    (
        "system",
        "You are a helpful translator. Translate the user sentence to French.",
    ),
    ("human", "I love programming."),
]
print(model.invoke(messages))

for chunk in model.stream(messages):
    print(chunk.text, end="")

stream = model.stream(messages)
full = next(stream)
for chunk in stream:
    full += chunk
print(full)


class GetWeather(BaseModel):
    """Get the current weather in a given location"""

    location: str = Field(..., description="The city and state, e.g. San Francisco, CA")


model_with_tools = model.bind_tools([GetWeather])
print(model_with_tools.invoke("Which city is hotter today and which is bigger: LA or NY?").tool_calls)


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


agent = create_agent(model=model, tools=[get_weather], system_prompt="You are a helpful assistant")
answer = agent.invoke({"messages": [{"role": "user", "content": "what is the weather in sf"}]})
print(answer["messages"][-1])
