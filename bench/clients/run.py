#!/usr/bin/env python3
"""Clients that others wrote against `kvart serve`: lm-eval and GuideLLM.

Usage: run.py KVART MODEL FOLDER [--policies f16 int4] [--context 2048] [--json FILE]
(packages: requirements.txt; MODEL: a GGUF file, or the folder of a Hugging Face model)

FOLDER is for what is made: tasks for lm-eval (make_tasks.py), the model as transformers reads it
(export_gguf.py), results. lm-eval asks the server through its local-completions, by tokens that the
server itself splits (/tokenizer_info), and the same model through transformers in f32: printed are
both scores, and how far the likelihoods of each answer are apart. GuideLLM loads the server with
synthetic prompts, completions and chats. Nothing is fetched. Exit code 1 if a client fails.
"""

import argparse
import glob
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(HERE))
from server_process import Server  # noqa: E402

TASKS = ("kvart_sequences", "kvart_pairs", "kvart_lines")
SCORES = ("acc,none", "exact_match,stripped", "byte_perplexity,none")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvart", help="the program kvart")
    parser.add_argument("model", help="a GGUF file, or a folder of Hugging Face's")
    parser.add_argument("folder", help="for tasks, the exported model and results")
    parser.add_argument("--policies", nargs="+", default=["f16", "int4"])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--count", type=int, default=40, help="documents of each task")
    parser.add_argument("--requests", type=int, default=24, help="of GuideLLM, for each kind")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, help="of the server; default: its own")
    parser.add_argument("--json", help="file for the figures")
    return parser.parse_args()


def run(folder, name, words):
    """Runs a client; its output goes to FOLDER/NAME.log."""
    log = os.path.join(folder, name + ".log")
    with open(log, "w", encoding="utf-8") as out:
        done = subprocess.run([sys.executable, *map(str, words)], cwd=folder, stdout=out,
                              stderr=subprocess.STDOUT, check=False, timeout=3600,
                              env={**os.environ, **OFFLINE,
                                   "HF_HOME": os.path.join(folder, "hub")})
    if done.returncode != 0:
        with open(log, encoding="utf-8") as text:
            sys.exit(f"{name}: exit code {done.returncode}, {log}\n{text.read()[-3000:]}")


def newest(folder, name, pattern):
    found = glob.glob(os.path.join(folder, name, "**", pattern), recursive=True)
    if not found:
        sys.exit(f"{name}: no {pattern}")
    return max(found, key=os.path.getmtime)


def lm_eval(folder, name, model, model_args, *more):
    """Scores by task, and by task what was answered to each document."""
    run(folder, name, ["-m", "lm_eval", "run", "--model", model, "--model_args", model_args,
                       "--tasks", ",".join(TASKS), "--include_path", folder, "--log_samples",
                       "--output_path", os.path.join(folder, name), *more])
    with open(newest(folder, name, "results_*.json"), encoding="utf-8") as opened:
        results = json.load(opened)["results"]
    scores = {task: results[task][score] for task, score in zip(TASKS, SCORES)}
    answers = {}
    for task in TASKS:
        with open(newest(folder, name, f"samples_{task}_*.jsonl"), encoding="utf-8") as lines:
            samples = [json.loads(line) for line in lines]
        answers[task] = [sample["resps"] for sample in sorted(samples, key=lambda s: s["doc_id"])]
    return {"scores": scores, "answers": answers}


def numbers(response):
    """The likelihoods in a sample's responses, however they are nested; of pairs with "is greedy"
    the first."""
    if isinstance(response, list):
        if len(response) == 2 and str(response[1]) in ("True", "False"):
            return [float(response[0])]
        return [number for one in response for number in numbers(one)]
    return [float(response)]


def compare(ours, theirs):
    """By how much likelihoods differ, in nats, and how many generated answers are the same."""
    out = {}
    for task in TASKS:
        a, b = ours["answers"][task], theirs["answers"][task]
        if task == "kvart_pairs":
            out["same_answers"] = sum(x == y for x, y in zip(a, b))
            out["answers"] = len(a)
            continue
        apart = [abs(x - y) for x, y in zip(numbers(a), numbers(b), strict=True)]
        out[task] = {"likelihoods": len(apart), "mean": statistics.mean(apart),
                     "most": max(apart)}
    return out


def guidellm(args, folder, name, port, path, tokenizer):
    report = os.path.join(folder, name + ".json")
    backend = {"kind": "openai_http", "target": f"http://127.0.0.1:{port}", "request_format": path}
    data = {"kind": "synthetic_text", "prompt_tokens": args.prompt_tokens,
            "output_tokens": args.output_tokens}
    run(folder, name, ["-m", "guidellm", "run", "--backend", json.dumps(backend), "--profile",
                       "kind=concurrent,streams=4", "--constraint",
                       f"kind=max_requests,count={args.requests}", "--data", json.dumps(data),
                       "--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--output",
                       f"kind=json,path={report}", "--disable-console-interactive"])
    with open(report, encoding="utf-8") as opened:
        metrics = json.load(opened)["benchmarks"][0]["metrics"]
    good = lambda key: metrics[key]["successful"]  # noqa: E731
    return {"requests": metrics["request_totals"],
            "output_tokens": good("output_token_count")["mean"],
            "first_token_ms": good("time_to_first_token_ms")["median"],
            "between_tokens_ms": good("inter_token_latency_ms")["median"],
            "tokens_per_s": good("output_tokens_per_second")["mean"]}


def serve(args, policy, tokenizer):
    """Both clients against a server with that policy."""
    server = Server(args.kvart, args.model, [
        "--kv-cache-dtype", policy, "--max-model-len", args.context, "--max-num-seqs", 8,
        "--served-model-name", "served", *(["--threads", args.threads] if args.threads else [])])
    try:
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        figures = {"lm_eval": lm_eval(
            args.folder, f"lm_eval_{policy}", "local-completions",
            f"model=served,base_url={url},num_concurrent=4,max_length={args.context}")}
        for path, kind in (("/v1/completions", "completions"), ("/v1/chat/completions", "chat")):
            figures[kind] = guidellm(args, args.folder, f"guidellm_{policy}_{kind}", server.port,
                                     path, tokenizer)
        return figures
    finally:
        server.end()


def print_figures(args, figures):
    versions = (f"{name} {importlib.metadata.version(name)}"
                for name in ("lm_eval", "guidellm", "transformers", "torch"))
    print(f"{', '.join(versions)}; {os.path.basename(os.path.normpath(args.model))}\n")
    print(f"lm-eval, {args.count} documents each  " + "".join(f"{task:>17}" for task in TASKS)
          + "   nats apart, mean and most    same answers")
    for name, row in figures.items():
        lm = row["lm_eval"]
        apart = row.get("apart")
        print(f"{name:30}" + "".join(f"{lm['scores'][task]:17.4f}" for task in TASKS) + (
            f"   {apart[TASKS[0]]['mean']:.2g}, {apart[TASKS[0]]['most']:.2g} (sequences); "
            f"{apart[TASKS[2]]['mean']:.2g}, {apart[TASKS[2]]['most']:.2g} (lines) "
            f"{apart['same_answers']:4} of {apart['answers']}" if apart else ""))
    print(f"\nGuideLLM, 4 streams, {args.prompt_tokens} + {args.output_tokens} tokens")
    for name, row in figures.items():
        for kind in ("completions", "chat"):
            if kind not in row:
                continue
            one = row[kind]
            totals = one["requests"]
            print(f"{name + ', ' + kind:30} {totals['successful']:4} right, {totals['errored']} "
                  f"wrong, {totals['incomplete']} cut; {one['output_tokens']:.1f} tokens each; "
                  f"first token {one['first_token_ms']:.0f} ms, then one in "
                  f"{one['between_tokens_ms']:.1f} ms; {one['tokens_per_s']:.1f} tokens/s")


def main():
    args = parse_arguments()
    args.folder = os.path.abspath(args.folder)
    args.model = os.path.abspath(args.model)
    os.makedirs(args.folder, exist_ok=True)
    exported = args.model
    if os.path.isfile(args.model):
        exported = os.path.join(args.folder, "exported")
        run(args.folder, "export", [os.path.join(HERE, "export_gguf.py"), args.model, exported])
    run(args.folder, "make_tasks", [os.path.join(HERE, "make_tasks.py"), args.folder, "--count",
                                    args.count])
    figures = {"transformers, f32": {"lm_eval": lm_eval(
        args.folder, "lm_eval_hf", "hf",
        f"pretrained={exported},dtype=float32,max_length={args.context}", "--device", "cpu")}}
    for policy in args.policies:
        row = serve(args, policy, exported)
        row["apart"] = compare(row["lm_eval"], figures["transformers, f32"]["lm_eval"])
        figures[f"kvart serve, {policy}"] = row
    print_figures(args, figures)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
    return int(any(row[kind]["requests"]["errored"] for row in figures.values()
                   for kind in ("completions", "chat") if kind in row))


if __name__ == "__main__":
    sys.exit(main())
