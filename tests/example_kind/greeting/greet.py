"""The program: it runs without the token, in the workspace, and reaches the model through the door."""

import json
import os
import urllib.request
from pathlib import Path


def ask(question: str) -> str:
    """The model's answer, over the wire `responses`."""
    call = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/responses",
        data=json.dumps({"model": os.environ["DRIVER_MODEL"], "input": question}).encode(),
        headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(call) as answer:
        texts = [part["text"] for item in json.load(answer)["output"] for part in item.get("content", [])]
    return "\n".join(texts)


def main() -> None:
    task = json.loads(Path("task.json").read_text("utf-8"))
    greeting = ask(f"Greet the authors of {task['repositoryFullName']} in one sentence.")
    Path("out/greeting.txt").write_text(greeting + "\n", "utf-8")


if __name__ == "__main__":
    main()
