#!/usr/bin/env python3
# OpenAI's own Python client against `kvart serve`; skipped where it isn't installed. It parses
# every answer into typed objects, streams events, and raises its own errors.
import sys
import unittest

try:
    import openai
except ImportError:
    openai = None

from served import Served, ServedCase

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


class Client(ServedCase):
    def setUp(self):
        super().setUp()
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], ["llama"])
        self.assertEqual(self.client.models.retrieve("llama").object, "model")

    def test_completion(self):
        answer = self.client.completions.create(model="llama", prompt="a b", max_tokens=8, seed=1,
                                                logprobs=2, n=2, extra_body={"ignore_eos": True})
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 8)
        parts = self.client.completions.create(model="llama", prompt="a b", max_tokens=8, seed=1,
                                               stream=True, extra_body={"ignore_eos": True})
        self.assertEqual("".join(part.choices[0].text for part in parts), answer.choices[0].text)

    def test_chat(self):
        body = {"model": "llama", "messages": MESSAGES, "max_completion_tokens": 12, "seed": 3}
        answer = self.client.chat.completions.create(**body, logprobs=True, top_logprobs=3)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        for token in choice.logprobs.content:
            self.assertEqual(len(token.top_logprobs), 3)
        chunks = list(self.client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, choice.message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].usage.total_tokens, answer.usage.total_tokens)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="llama", prompt="a", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=MESSAGES)

    def test_keys(self):
        server = Served(self.models / "llama.gguf", "--api-key", "right")
        self.addCleanup(server.stop)
        for key, right in (("right", True), ("wrong", False)):
            with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
                if right:
                    client.models.list()
                    continue
                with self.assertRaises(openai.AuthenticationError):
                    client.models.list()

    def test_a_stream_that_is_closed_early(self):
        stream = self.client.completions.create(model="llama", prompt="a", max_tokens=400,
                                                stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)


if __name__ == "__main__":
    if openai is None:
        print("openai_client_test: skipped, the package openai isn't installed here "
              "(scripts/python_packages.sh test/server/requirements.txt build/python)")
        sys.exit(77)
    unittest.main()
