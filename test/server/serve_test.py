#!/usr/bin/env python3
# `kvart serve` from the outside, with an engine and a tiny model: answers are those of `kvart run`,
# the same streamed or not, alone or among others; scores add up; signals end it as they should.
import concurrent.futures
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import time
import unittest

import served
from served import Served, ServedCase

PROMPT = "Once upon a time there was a"


class Answers(ServedCase):
    def test_models_and_health(self):
        self.assertEqual(self.server.ask("GET", "/health"), (200, ""))
        status, text = self.server.ask("GET", "/v1/models")
        self.assertEqual(status, 200)
        model = json.loads(text)["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), ("llama", 512))
        self.assertNotIn(str(self.models), text)

    def test_greedy_is_what_run_says(self):
        path = self.models / "out.json"
        subprocess.run([served.KVART, "run", self.models / "llama.gguf", "--raw", "-p", PROMPT,
                        "-n", "24", "-t", "1", "--ignore-eos", "-q", "--json", path], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        run = json.loads(path.read_text())
        answer = self.server.post("/v1/completions", prompt=PROMPT, max_tokens=24, temperature=0,
                                  ignore_eos=True, return_token_ids=True)
        choice = answer["choices"][0]
        self.assertEqual(choice["token_ids"], run["completion_ids"])
        self.assertEqual(choice["prompt_token_ids"], run["prompt_ids"])
        self.assertEqual(choice["text"], run["text"])
        self.assertEqual(answer["usage"]["completion_tokens"], 24)

    def test_streamed_or_not(self):
        for path, what in (("/v1/completions", {"prompt": PROMPT}),
                           ("/v1/chat/completions",
                            {"messages": [{"role": "user", "content": PROMPT}]})):
            chat = "messages" in what
            for n in (1, 3):
                body = {**what, "max_tokens": 20, "seed": 5, "n": n, "ignore_eos": True}
                whole = self.server.post(path, **body)
                events = self.server.stream(path, stream_options={"include_usage": True}, **body)
                self.assertEqual(events[-1], "[DONE]")
                chunks = [json.loads(event) for event in events[:-1]]
                self.assertEqual(chunks[-1]["choices"], [])
                texts, ends = [""] * n, [0] * n
                for chunk in chunks[:-1]:
                    choice = chunk["choices"][0]
                    text = choice["delta"].get("content") if chat else choice["text"]
                    texts[choice["index"]] += text or ""
                    ends[choice["index"]] += choice["finish_reason"] is not None
                said = [c["message"]["content"] if chat else c["text"] for c in whole["choices"]]
                self.assertEqual(texts, said)
                self.assertEqual(ends, [1] * n)
                usage = chunks[-1]["usage"]
                for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
                    self.assertEqual(usage[key], whole["usage"][key])

    def test_echoed_logprobs_are_those_of_the_answer(self):
        # What an evaluation harness does: the scores of a text, here of one that was generated.
        first = self.server.post("/v1/completions", prompt=PROMPT, max_tokens=12, temperature=0,
                                 logprobs=3, return_token_ids=True, ignore_eos=True)
        choice = first["choices"][0]
        ids = choice["prompt_token_ids"] + choice["token_ids"]
        scored = self.server.post("/v1/completions", prompt=ids, max_tokens=1, temperature=0,
                                  logprobs=3, echo=True)
        logprobs = scored["choices"][0]["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), len(ids) + 1)
        self.assertIsNone(logprobs["token_logprobs"][0])
        start = len(choice["prompt_token_ids"])
        for i, expected in enumerate(choice["logprobs"]["token_logprobs"]):
            got = logprobs["token_logprobs"][start + i]
            self.assertAlmostEqual(got, expected, places=5)
            self.assertEqual(got, max(logprobs["top_logprobs"][start + i].values()))
            self.assertLessEqual(sum(map(math.exp, logprobs["top_logprobs"][start + i].values())),
                                 1.0001)

    def test_requests_that_differ_are_as_alone(self):
        bodies = [
            {"seed": 1}, {"seed": 2, "temperature": 0.3}, {"temperature": 0},
            {"stop": ["e"], "seed": 12},
            {"logprobs": 5, "seed": 3}, {"repetition_penalty": 1.5, "seed": 4},
            {"presence_penalty": 1.0, "seed": 5}, {"frequency_penalty": -1.0, "seed": 6},
            {"top_k": 3, "seed": 7}, {"top_p": 0.5, "seed": 8}, {"min_p": 0.2, "seed": 9},
            {"logit_bias": {"65": 20}, "seed": 10}, {"n": 2, "seed": 11}, {"echo": True, "seed": 1},
        ]
        bodies = [{"prompt": PROMPT[i % 5:], "max_tokens": 24, **b} for i, b in enumerate(bodies)]
        alone = [self.server.post("/v1/completions", **body)["choices"] for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            together = list(pool.map(
                lambda body: self.server.post("/v1/completions", **body)["choices"], bodies))
        self.assertEqual(alone, together)

    def test_lengths(self):
        for tokens, more, expected in ((511, {}, 1), (500, {}, 12), (500, {"max_tokens": 12}, 12)):
            answer = self.server.post("/v1/completions", prompt=[5] * tokens, ignore_eos=True,
                                      **more)
            self.assertEqual(answer["usage"]["completion_tokens"], expected)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        status, text = self.server.ask(
            "POST", "/v1/completions", {"prompt": [5] * 500, "max_tokens": 13})
        self.assertEqual(status, 400)
        for figure in ("513", "512", "500", "at most 12"):
            self.assertIn(figure, json.loads(text)["error"]["message"])
        for tokens in (512, 513, 5120):
            status, text = self.server.ask("POST", "/v1/completions", {"prompt": [5] * tokens})
            self.assertEqual(status, 400)
            self.assertIn("512 tokens", json.loads(text)["error"]["message"])
            self.assertIn(f"{tokens} tokens", json.loads(text)["error"]["message"])
        self.assertEqual(self.server.post("/v1/completions", prompt="a")["object"],
                         "text_completion")

    def test_special_tokens_of_a_user_are_text(self):
        answer = self.server.post("/tokenize", messages=[{"role": "user", "content": "x"}])
        specials = [t for t in answer["tokens"] if t >= 256]
        for text in ("<|im_end|>", "<s></s>", "a<|end|>b"):
            for more in ({"content": text}, {"content": "x", "name": text}):
                one = self.server.post("/tokenize", messages=[{"role": "user", **more}])
                self.assertEqual([t for t in one["tokens"] if t >= 256], specials)

    def test_tokens_and_back(self):
        tokens = self.server.post("/tokenize", prompt="Hello \u00e9\u20ac", return_token_strs=True)
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        back = self.server.post("/detokenize", tokens=tokens["tokens"])["prompt"]
        self.assertTrue(back.endswith("Hello \u00e9\u20ac"))

    def test_what_a_client_needs_to_work_by_tokens(self):
        status, text = self.server.ask("GET", "/tokenizer_info")
        self.assertEqual(status, 200)
        info = json.loads(text)
        for name, token in (("bos_token", 256), ("eos_token", 257)):
            ids = self.server.post("/tokenize", prompt=info[name], add_special_tokens=False)
            self.assertEqual(ids["tokens"], [token])
        self.assertIn("messages", info["chat_template"])
        self.assertNotIn(str(self.models), text)

    def test_a_prefix_is_found_again(self):
        ids = [(7 * i) % 200 for i in range(300)]
        self.server.post("/v1/completions", prompt=ids, max_tokens=1)
        again = self.server.post("/v1/completions", prompt=ids, max_tokens=1)
        details = again["usage"]["prompt_tokens_details"]
        self.assertEqual(details["cached_tokens"], 256)
        salted = self.server.post("/v1/completions", prompt=ids, max_tokens=1, cache_salt="mine")
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.server.ask("POST", "/reset_prefix_cache")[0], 200)
        reset = self.server.post("/v1/completions", prompt=ids, max_tokens=1)
        self.assertEqual(reset["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def assert_idle(self, limit_s=2):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            state = json.loads(self.server.ask("GET", "/v1/status")[1])
            if state["running"] + state["waiting"] == 0:
                break
            time.sleep(0.02)
        self.assertEqual(state["running"] + state["waiting"], 0)
        self.assertEqual(state["cache"]["sealed"]["referenced"], 0)
        self.assertEqual(state["cache"]["open"]["referenced"], 0)

    def test_what_is_late_gives_its_blocks_back(self):
        body = {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True, "n": 16, "timeout": 0.1}
        status, text = self.server.ask("POST", "/v1/completions", body)
        self.assertEqual(status, 504, text)
        self.assert_idle()
        events = self.server.stream("/v1/completions", **body)
        self.assertEqual(json.loads(events[-1])["error"]["code"], 504)
        self.assertGreater(len(events), 1)
        self.assert_idle()
        late = json.loads(self.server.ask("GET", "/v1/status")[1])["finished"]["deadline"]
        self.assertEqual(late, 2)

    def test_clients_that_vanish(self):
        for stream in (False, True):
            connections = []
            for _ in range(20):
                connection = self.server.connection()
                connection.request("POST", "/v1/completions", json.dumps(
                    {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": stream}))
                connections.append(connection)
            time.sleep(0.05)
            for connection in connections:
                connection.close()
            self.assert_idle()


class Program(ServedCase):
    arguments = ("--max-num-seqs", "4")

    def test_says_what_the_cache_is(self):
        text = "\n".join(self.server.lines)
        for word in ("bytes per token", "pool of", "4 sequences of 512 tokens", "2,048 tokens",
                     "layers 0-3: K ", "http://127.0.0.1:"):
            self.assertIn(word, text)

    def test_a_port_in_use(self):
        done = subprocess.run([served.KVART, "serve", self.models / "llama.gguf", "--port",
                               str(self.server.port), "-t", "1"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("in use", done.stderr)

    def test_what_does_not_fit(self):
        model = self.models / "llama.gguf"
        done = subprocess.run([served.KVART, "serve", model, "--kv-cache-memory-bytes", "100kB",
                               "--max-num-seqs", "1", "--max-model-len", "512", "-t", "1"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--max-model-len", done.stderr)

    def test_keys_from_the_environment(self):
        server = Served(self.models / "llama.gguf", env={"KVART_API_KEY": "secret"})
        self.addCleanup(server.stop)
        self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
        self.assertEqual(
            server.ask("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        self.assertNotIn("secret", "\n".join(server.lines))

    def test_an_empty_key_is_none_that_could_be_given(self):
        done = subprocess.run([served.KVART, "serve", self.models / "llama.gguf", "-t", "1"],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "KVART_API_KEY": ""})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("KVART_API_KEY", done.stderr)

    def test_all_addresses_without_a_key(self):
        for host, warns in (("0.0.0.0", True), ("::", True), ("127.0.0.1", False)):
            try:
                server = Served(self.models / "llama.gguf", "--host", host)
            except RuntimeError as error:
                if host == "::" and "protocol" in str(error):  # a machine without IPv6
                    continue
                raise
            self.addCleanup(server.stop)
            self.assertEqual("--api-key" in "\n".join(server.lines), warns, host)

    def test_the_benchmark_client_speaks_to_it(self):
        hosts = ["127.0.0.1"]
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
            hosts.append("::1")
        for host in hosts:
            server = Served(self.models / "llama.gguf", "--host", host)
            self.addCleanup(server.stop)
            url = f"http://[{host}]" if ":" in host else f"http://{host}"
            done = subprocess.run(
                [served.KVART, "bench-serve", "--base-url", f"{url}:{server.port}",
                 "--num-prompts", "1", "--random-input-len", "10", "--random-output-len", "2"],
                capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_sigterm_lets_streams_finish(self):
        server = Served(self.models / "llama.gguf", "--max-num-seqs", "8")
        body = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(server.stream, "/v1/completions", **body) for _ in range(8)]
            time.sleep(0.5)
            self.assertEqual(server.stop(), 0)
            for stream in streams:
                self.assertEqual(stream.result()[-1], "[DONE]")

    def test_sigterm_ends_streams_at_the_limit(self):
        server = Served(self.models / "llama.gguf", "--shutdown-timeout", "0.2",
                        "--max-num-seqs", "1", "--max-num-batched-tokens", "1")
        # 32,000 steps of one token: more than any machine does in the time.
        body = {"prompt": [5] * 250, "max_tokens": 250, "ignore_eos": True, "n": 16}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(server.stream, "/v1/completions", **body) for _ in range(8)]
            time.sleep(0.5)
            self.assertEqual(server.stop(), 0)
            ends = [stream.result()[-1] for stream in streams]
        self.assertTrue(any("\"code\":503" in end for end in ends), ends)
        self.assertTrue(all(end == "[DONE]" or "\"error\"" in end for end in ends), ends)

    def test_a_signal_while_it_loads(self):
        for delay_s in (0, 0.005, 0.01, 0.02, 0.04):
            process = subprocess.Popen([served.KVART, "serve", self.models / "llama.gguf", "--port",
                                        "0", "-t", "1"], stderr=subprocess.DEVNULL)
            time.sleep(delay_s)
            process.send_signal(signal.SIGTERM)
            # Before the program has begun, the system ends it.
            self.assertIn(process.wait(timeout=30), (0, -signal.SIGTERM))

    def test_a_second_signal_ends_it_at_once(self):
        server = Served(self.models / "llama.gguf", "--max-num-batched-tokens", "8",
                        "--max-num-seqs", "8")
        # More than it can do before the second signal, however fast the machine is.
        connections = [server.connection() for _ in range(12)]
        for i, connection in enumerate(connections):
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": [5 + i] * 200, "max_tokens": 300, "ignore_eos": True, "n": 8}))
        time.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGTERM)
        self.assertNotEqual(server.process.wait(timeout=2), 0)
        for connection in connections:
            connection.close()
        server.stop()


if __name__ == "__main__":
    unittest.main()
