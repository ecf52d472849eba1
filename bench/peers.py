"""The programs that compare_llama_cpp.py runs: Kvart, llama.cpp and forks of it.

Each has `name` and `rates(cache, tokens, depths)`: {depth: (prefill, decode)} in tokens/s, measured
in one new process or context. A rate that wasn't measured is None.
"""

import ctypes
import json
import os
import shlex
import subprocess
import tempfile
import time

# Kvart's preset -> the type of llama.cpp's cache that is about as wide.
CACHES = {
    "f16": "f16",
    "fp8": "q8_0",
    "int8": "q8_0",
    "k8v8": "q8_0",
    "k6v4": "q5_0",
    "int4": "q4_0",
}
STEP = 512  # tokens of a prompt that the peers take at once; Kvart's default as well


BLOCK = 64  # tokens of a block of Kvart's cache


class Kvart:
    """`kvart run`, a process for each depth.

    Depths beyond prefill_max are reached by copies of the prompt's blocks: each of them has pages
    of its own, so decoding reads as many bytes.
    """

    name = "Kvart"

    def __init__(self, program, model, threads, decoded, prefill_max):
        self.prefill_max = prefill_max
        self.command = [os.path.abspath(program), "run", os.path.abspath(model), "-q"]
        self.command += ["-t", str(threads), "--forced", str(decoded)]
        self.decoded = decoded

    def rates(self, cache, tokens, depths):
        return {depth: self.rates_at(cache, tokens, depth) for depth in depths}

    def rates_at(self, cache, tokens, depth):
        prompt = depth
        if depth > self.prefill_max:  # the open block is filled as at that depth
            prompt -= -(-(depth - self.prefill_max) // BLOCK) * BLOCK
        with tempfile.TemporaryDirectory() as folder:
            ids = os.path.join(folder, "ids")
            report = os.path.join(folder, "report.json")
            with open(ids, "w", encoding="utf-8") as file:
                file.write(" ".join(map(str, tokens[: prompt + self.decoded])))
            command = [*self.command, "--kv-cache-dtype", cache, "--token-ids", ids]
            checked_output([*command, "--depth", str(depth), "--json", report])
            with open(report, encoding="utf-8") as file:
                figures = json.load(file)
        prefill = depth / figures["prefill_s"] if prompt == depth else None
        return prefill, self.decoded / figures["decode_s"]


class LlamaCpp:
    """llama.cpp by its Python binding: one pass over the deepest prompt, decoding at each depth.

    Depths beyond prefill_max are reached by copying cells of the cache, which takes no time. Then
    decoding reads as many cells, but whether it is as fast is not settled: it is a lower bound.
    """

    def __init__(self, model, threads, decoded, prefill_max):
        import llama_cpp  # pylint: disable=import-outside-toplevel

        self.api = llama_cpp
        self.name = "llama.cpp"
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.model = model
        self.threads = threads
        self.decoded = decoded
        self.prefill_max = prefill_max

    def rates(self, cache, tokens, depths):
        api = self.api
        quiet = api.llama_log_callback(lambda level, text, user_data: None)
        api.llama_log_set(quiet, ctypes.c_void_p(0))
        api.llama_backend_init()
        model = api.llama_model_load_from_file(
            self.model.encode(), api.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp can't load {self.model}")
        context = api.llama_init_from_model(model, self.parameters(cache, max(depths)))
        if not context:
            raise RuntimeError(f"llama.cpp makes no context with {CACHES[cache]} caches")
        try:
            return self.rates_in(context, tokens, depths)
        finally:
            api.llama_free(context)
            api.llama_model_free(model)

    def parameters(self, cache, depth):
        api = self.api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = depth + self.decoded + STEP
        parameters.n_batch = parameters.n_ubatch = STEP
        parameters.n_threads = parameters.n_threads_batch = self.threads
        parameters.n_seq_max = 3  # the prompt, and two for copying cells
        parameters.kv_unified = True
        parameters.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        kind = getattr(api, f"GGML_TYPE_{CACHES[cache].upper()}")
        parameters.type_k = parameters.type_v = kind
        return parameters

    def rates_in(self, context, tokens, depths):
        self.take(context, tokens[:1], 0)  # warms up: the first pass reads the file
        self.cut(context, 0)
        rates = {}
        taken = copied = 0
        prefill_s = 0.0
        for depth in depths:
            if taken == 0 or depth <= self.prefill_max:
                prefill_s += self.take(context, tokens[taken:depth], taken)
                taken = depth
                prefill = depth / prefill_s
            else:
                while taken + copied < depth:
                    copied += self.copy(context, min(taken, depth - taken - copied))
                prefill = None
            decode_s = sum(
                self.take(context, [token], taken + place)
                for place, token in enumerate(tokens[depth : depth + self.decoded])
            )
            self.cut(context, taken)
            rates[depth] = (prefill, self.decoded / decode_s)
        return rates

    def take(self, context, tokens, position):
        """Seconds that the tokens took; with logits of the last one, as when it is sampled."""
        api = self.api
        start = time.perf_counter()
        for first in range(0, len(tokens), STEP):
            part = tokens[first : first + STEP]
            batch = api.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for place, token in enumerate(part):
                batch.token[place] = token
                batch.pos[place] = position + first + place
                batch.n_seq_id[place] = 1
                batch.seq_id[place][0] = 0
                batch.logits[place] = first + place + 1 == len(tokens)
            status = api.llama_decode(context, batch)
            api.llama_batch_free(batch)
            if status != 0:
                raise RuntimeError(f"llama_decode: {status}")
        api.llama_synchronize(context)
        return time.perf_counter() - start

    def cut(self, context, position):
        """Removes what follows the prompt."""
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(context), 0, position, -1)

    def copy(self, context, count):
        """Gives the prompt's first `count` cells once more to the sequence; returns count."""
        api = self.api
        memory = api.llama_get_memory(context)
        if api.llama_memory_seq_pos_max(memory, 1) < 0:  # 1 keeps the prompt without its copies
            api.llama_memory_seq_cp(memory, 0, 1, -1, -1)
        api.llama_memory_seq_cp(memory, 1, 2, 0, count)
        held = api.llama_state_seq_get_size(context, 2)
        state = (ctypes.c_uint8 * held)()
        held = api.llama_state_seq_get_data(context, state, held, 2)
        api.llama_memory_seq_rm(memory, 2, -1, -1)
        if not api.llama_state_seq_set_data(context, state, held, 2):
            raise RuntimeError("llama.cpp has no room for a copy of cells")
        api.llama_memory_seq_cp(memory, 2, 0, -1, -1)
        api.llama_memory_seq_rm(memory, 2, -1, -1)
        return count


class SweepBench:
    """A fork's llama-sweep-bench, one process for all depths.

    It decodes before each STEP tokens of the prompt and times both. Rates at other depths lie on
    the line between the two next to them, in seconds. Depths beyond depth_max aren't measured.
    """

    def __init__(self, program, name, model, threads, decoded, extra, depth_max):
        self.name = name
        self.depth_max = depth_max
        self.decoded = decoded
        self.command = [os.path.abspath(program), "-m", os.path.abspath(model), *shlex.split(extra)]
        self.command += ["-fa", "on", "-t", str(threads), "-b", str(STEP), "-ub", str(STEP)]
        self.command += ["-n", str(decoded), "--output-format", "jsonl"]

    def rates(self, cache, tokens, depths):
        del tokens  # it draws its own
        kind = CACHES[cache]
        wanted = [depth for depth in depths if depth <= self.depth_max]
        steps = wanted[-1] // STEP + 1  # the last one begins at or before the deepest
        if wanted[-1] % STEP:
            steps += 1
        printed = checked_output(
            [*self.command, "-ctk", kind, "-ctv", kind, "-c", str(steps * STEP)]
        )
        rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        if [row["n_kv"] for row in rows] != [step * STEP for step in range(steps)]:
            raise RuntimeError(f"no rows as expected from {self.command[0]}:\n{printed[-2000:]}")
        return {
            depth: rates_between(rows, depth) if depth in wanted else (None, None)
            for depth in depths
        }


def rates_between(rows, depth):
    """(prefill, decode) at a depth, from a sweep's rows of STEP tokens each."""
    whole, rest = divmod(depth, STEP)
    share = rest / STEP
    prefill_s = sum(row["t_pp"] for row in rows[:whole])
    decode_s = rows[whole]["t_tg"]
    if rest:
        prefill_s += share * rows[whole]["t_pp"]
        following = rows[min(whole + 1, len(rows) - 1)]
        decode_s += share * (following["t_tg"] - decode_s)
    return depth / prefill_s, rows[whole]["tg"] / decode_s


def checked_output(command):
    """stdout and stderr of a command, which runs in a folder of its own: some write logs there."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout
