#!/usr/bin/env python3
"""Writes test/model/text/data/chat_template.json: what jinja2, set up as for chat templates, renders.

Needs jinja2 and gguf. Run from the repository's root: python3 test/oracle/chat_template.py
"""

import datetime
import json
import os
import pathlib
import random

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2024, 7, 9, 13, 5, 42)
DATA = pathlib.Path(__file__).parent.parent / "model" / "text" / "data" / "chat_template.json"


class Generation(jinja2.ext.Extension):
    """{% generation %} only marks what the assistant says."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def render(case):
    """The text, or None where jinja2 refuses."""
    try:
        return ENV.from_string(case["template"]).render(
            messages=case["messages"],
            tools=case["tools"],
            documents=None,
            add_generation_prompt=case["add_generation_prompt"],
            bos_token="<s>",
            eos_token="</s>",
            **case["extra"],
        )
    except Exception:  # whatever it is, ours must be an error too
        return None


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter & \"Temperatur\" \u00fcber <b>Orte</b>\n'heute'",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. K\u00f6ln \U0001f327"},
                "days": {"type": "integer", "minimum": 1, "maximum": 18446744073709551615},
                "exact": {"type": "boolean", "default": False},
                "factor": {"type": "number", "default": 1.5e-7},
                "unit": {"enum": ["C", "F", None]},
                "empty": {"properties": {}, "required": []},
            },
            "required": ["city"],
        },
    },
}

CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2}},
}

CONVERSATIONS = {
    "one": ([{"role": "user", "content": "  Hi there \n"}], None),
    "system": (
        [
            {"role": "system", "content": "Be kind.\n"},
            {"role": "user", "content": "Was ist 2 + 2?"},
            {"role": "assistant", "content": "<think>\nadd\n</think>\n\nIt's 4."},
            {
                "role": "user",
                "content": "\u00e4\u00f6\u00fc \u4f60\u597d \U0001f600 <|im_start|>system",
            },
        ],
        None,
    ),
    "tools": (
        [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "rain"},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "wind"},
            {"role": "assistant", "content": "Rain.", "tool_calls": []},
            {"role": "user", "content": "Thanks"},
        ],
        [TOOL, {"type": "function", "function": {"name": "noop", "parameters": {}}}],
    ),
    "parts": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": " look "},
                    {"type": "image"},
                    {"type": "text", "text": "here"},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "ok"}],
                "reasoning_content": "hm\n",
            },
            {"role": "user", "content": "and?"},
        ],
        None,
    ),
    "wrong": (
        [{"role": "assistant", "content": "I begin"}, {"role": "assistant", "content": "twice"}],
        None,
    ),
    "empty": ([], None),
}

# Our own templates, each with the constructs of a family of models.
TEMPLATES = {
    "chatml": """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') | string + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "chatml_first": """{% for m in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
[sys]default[/sys]
{% endif %}
    {% if m.content is string %}
[{{ m.role }}]{{ m.content | trim }}[/{{ m.role }}]
    {% endif %}
{% endfor %}
{{ bos_token ~ eos_token }}
""",
    "tools_xml": r"""
{%- if tools %}
    {{- '[system]\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You answer.' }}
    {%- endif %}
    {{- "\n<list>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</list>[end]\n" }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '[system]\n' + messages[0]['content'] + '[end]\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '[' + message.role + ']\n' + message.content | string + '[end]' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '[' + message.role + ']' }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<call>\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '[end]\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '[user]' }}
        {%- endif %}
        {{- '\n<response>\n' ~ message.content ~ '\n</response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '[end]\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\n' }}
{%- endif %}
""",
    "headers_date": r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user is defined %}
    {%- set tools_in_user = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<h>system</h>\n\nToday: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system ~ "<e>" }}
{%- if tools_in_user and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("No first message") }}
    {%- endif %}
    {{- '<h>user</h>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user + "<e>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<h>' + message['role'] + '</h>\n\n' + (message['content'] | string | trim) + '<e>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls|length > 1 %}
            {{- raise_exception("One call at once") }}
        {%- endif %}
        {%- for call in message.tool_calls %}
        {{- '{"name": "' + call.function.name + '", "parameters": ' }}
        {{- call.function.arguments | tojson }}
        {{- "}" }}
        {%- for name, value in call.function.arguments | items %}
            {{- name + '="' ~ value ~ '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {%- endfor %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<h>ipython</h>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<h>assistant</h>\n\n' }}
{%- endif %}
""",
    "inst": r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[I] " + system_message + "\n\n" + message["content"] + "[/I]" }}
        {%- else %}
            {{- "[I] " ~ message["content"] ~ "[/I]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none and message.tool_calls %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Ids have nine letters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " ~ message["content"] ~ eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS] {"content": ' + content|string + ", " }}
        {{- '"id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}
        {{- raise_exception("Unknown role " + message["role"]) }}
    {%- endif %}
{%- endfor %}
""",
    "turns": r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must go user/assistant/user/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content") }}
    {%- endif -%}
    {{ '<end>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
""",
    "pipes": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' ~ message['content'] ~ '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' ~ message['content'] ~ '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "thinking": r"""{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<response>') and message.content.endswith('</response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '[' + message.role + ']\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '[' + message.role + ']\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '[' + message.role + '](' + reasoning + ')\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '[end]\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '[user]' }}{%- endif %}
        {{- '\n<response>\n' + content + '\n</response>' }}
    {%- else %}
        {{- '[' + message.role + ']\n' + content + '[end]' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""",
    "modes": r"""{# decides between two modes #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{%- set today = strftime_now("%d %B %Y") -%}
{%- if messages and messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set mode = "/no_think" -%}
  {%- endif -%}
  {%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "[system]\nToday: " ~ today ~ "\nMode: " ~ mode ~ "\n\n" -}}
{%- if custom -%}
  {{- custom ~ "\n\n" -}}
{%- else -%}
  {%- if mode == "/think" -%}{{- "Think.\n\n" -}}{%- else -%}{{- "Do not.\n\n" -}}{%- endif -%}
{%- endif -%}
{%- if xml_tools or tools -%}
  {%- set ns = namespace(text="tools:\n") -%}
  {%- for tool in (xml_tools or tools or []) -%}
    {%- set ns.text = ns.text ~ (tool | string) ~ "\n" -%}
  {%- endfor -%}
  {{- ns.text -}}
{%- endif -%}
{{- "[end]\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{- "[" ~ message.role ~ "]\n" ~ content ~ "[end]\n" -}}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if mode == "/think" -%}
      {{- "[assistant]\n" ~ content.lstrip("\n") ~ "[end]\n" -}}
    {%- else -%}
      {{- "[assistant]\n<think>\n\n</think>\n" ~ content.lstrip("\n") ~ "[end]\n" -}}
    {%- endif -%}
    {% endgeneration %}
  {%- elif message.role == "tool" -%}
    {{- "[user]\n" ~ content ~ "[end]\n" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- "[assistant]\n" -}}
{%- endif -%}
""",
    "namespace_text": r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system = ns.system + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system = ns.system + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<U>' ~ message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<A><calls><call>' + tool['type'] + '<sep>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments'] | tojson + '\n' + '```' + '</call>'}}{%- else %}{{'<A>' + message['content']}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'</calls><eos>'}}{%- elif message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'</outs>' + message['content'] + '<eos>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if content is string and '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<A>' ~ content ~ '<eos>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<outs><out>' + message['content'] + '</out>'}}{%- set ns.is_output_first = false %}{%- else %}{{'<out>' + message['content'] + '</out>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'</outs>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<A>'}}{% endif %}""",
    "blocks": r"""{%- macro part(item) -%}
    {%- if item is string -%}{{ item }}
    {%- elif item is mapping and item.type == 'text' -%}{{ item.text }}
    {%- elif item is mapping -%}{{ '<' ~ item.get('type', 'none') ~ '>' }}
    {%- endif -%}
{%- endmacro -%}
{%- macro content(message) -%}
    {%- if message.content is none -%}
    {%- elif message.content is string -%}{{ message.content }}
    {%- else -%}{% for item in message.content %}{{ part(item) }}{% endfor %}
    {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(turns=[], last_user=-1, tools_seen=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}{%- set state.last_user = loop.index0 -%}{%- endif -%}
    {%- set state.turns = state.turns + [message.role] -%}
{%- endfor -%}
{%- set preamble -%}
    {%- if messages and messages[0].role in ['system', 'developer'] -%}
        {{ content(messages[0]) | trim }}
    {%- else -%}
        You are a model.
    {%- endif -%}
{%- endset -%}
{{ bos_token }}<sys>{{ preamble }}{{ '\n\n' if tools else '' }}
{%- if tools %}
{% filter indent(width=2, first=true) %}
{{ tools | map(attribute='function') | map(attribute='name') | unique | join(', ') }}
{% endfilter %}
{%- for tool in tools | sort(attribute='function.name') -%}
    {%- set properties = tool.function.parameters.properties | default({}, true) -%}
    <tool>{{ tool.function.name }}({% for name, spec in properties | dictsort -%}
        {{ name }}: {{ spec.type | default('any') | upper }}{{ '' if loop.last else ', ' }}
    {%- endfor %})</tool>
{%- endfor -%}
{%- endif -%}</sys>
{% for message in messages[(1 if messages and messages[0].role == 'system' else 0):] %}
    {%- set offset = loop.index0 -%}
    {%- if message.role == 'tool' -%}
        {%- set state.tools_seen = state.tools_seen + 1 -%}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' -%}<results>{%- endif -%}
        {{ {'name': message.name, 'content': content(message)} | tojson(separators=(',', ':')) }}
        {%- if loop.nextitem is undefined or loop.nextitem.role != 'tool' -%}</results>{%- else -%},{%- endif -%}
        {%- continue -%}
    {%- endif -%}
    <{{ message.role }} n={{ '{}/{}'.format(loop.index, loop.length) }}{{ ' last' if offset >= state.last_user }}>
    {%- if message.role == 'assistant' -%}
        {% generation %}
        {%- set thought = message.reasoning_content if message.reasoning_content is defined and message.reasoning_content is not none else '' -%}
        {%- if thought | length -%}<t>{{ thought | trim('\n') }}</t>{%- endif -%}
        {{ content(message) -}}
        {%- for call in message.tool_calls or [] -%}
            <call>{{ call.function.name }}
            {%- for key in call.function.arguments -%}
                {{ ' ' ~ key ~ '=' ~ call.function.arguments[key] | tojson -}}
            {%- endfor -%}</call>
        {%- endfor -%}
        {% endgeneration %}
    {%- else -%}
        {{ content(message) | replace('<|', '<\\|') -}}
    {%- endif -%}
    </{{ message.role }}>
{% else %}
nothing said
{% endfor %}
{{- state.turns | join('>') }} {{ state.tools_seen }} {{ state.turns | select('equalto', 'tool') | list | length }}
{%- if add_generation_prompt %}
<assistant>
{%- endif %}
""",
    "macros": r"""{% macro render_extra(json_dict, handled=['type', 'properties']) %}
    {%- if json_dict is mapping %}
        {%- for key in json_dict if key not in handled %}
            {%- if json_dict[key] is mapping or (json_dict[key] is sequence and json_dict[key] is not string) %}
                {{- '\n<' ~ key ~ '>' ~ (json_dict[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{- '\n<' ~ key ~ '>' ~ (json_dict[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- macro schema(spec, level=0) -%}
    {%- if spec.type == "object" or spec.properties -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- "  " * (level + 1) ~ name ~ ("" if name in spec.required | default([]) else "?") ~ ": " -}}
            {{- schema(inner, level=level + 1) ~ ("," if not loop.last else "") ~ "\n" -}}
        {%- endfor -%}
        {{- "  " * level ~ "}" }}
    {%- elif spec.enum -%}
        {{- '"' ~ spec.enum | join('" | "') ~ '"' -}}
    {%- else -%}
        {{- spec.type | default("any", true) -}}
        {%- if spec.default is defined %} = {{ spec.default | tojson }}{% endif -%}
    {%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
    {%- set f = tool.function or tool %}
    {{- f.name ~ "(" ~ schema(f.parameters) ~ ")" ~ render_extra(f, ['parameters', 'name']) ~ "\n" }}
{%- else %}
no tools
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {%- if loop.index > 5 %}{% break %}{% endif %}
    {{- loop.index ~ '/' ~ loop.length ~ ':' ~ loop.revindex ~ (loop.previtem.role if loop.previtem is defined else '^') ~ '<' ~ (loop.nextitem is defined) ~ '>' ~ m.role ~ '\n' }}
{%- endfor %}
""",
}

# Small templates, each for one rule of the language; the conversation is "tools".
RULES = {
    "trim_blocks": "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "lstrip_blocks": "a\n   {% if true %}b{% endif %}\n \t{# note #}\n  c {% set x = 1 %}\n{{ x }}\n",
    "no_lstrip": "a\n   {%+ if true %}b{% endif +%}\n\n{#+ x +#}\nc",
    "minus": "a \n {%- if true -%} \n b \n {%- endif -%} \n c {{- 1 -}} d {#- x -#} e",
    "print_keeps_newline": "{{ 1 }}\n{{ 2 }}\n\n{{ 3 }}\n\n",
    "crlf": "a\r\n{% if true %}\r\nb\r{% endif %}\r\nc\r\n",
    "comment_multi": "x{# a\n b {{ 1 }} {% if %} #}y\n{# c #}\n{# d -#}\n   z",
    "raw": "{% raw %}{{ x }} {% if %}{% endraw %}\n {%- raw -%}  a {%- endraw -%} b",
    "raw_lines": "  {% raw %}\n x {{ y }}\n  {% endraw %}\nz",
    "brace_in_print": "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}",
    "not_tags": "{ x } {{ '{% x %}' }} {{ '}}' }} #} %} }}",
    "string_escapes": r"""{{ 'a\nb\tc\\d\'e\"f\x41\u00e9\U0001f600\101\q' }}""",
    "adjacent_strings": """{{ 'a' "b" 'c' }}""",
    "unicode_strip": "{{ '\u00a0\u3000 x \u2003' | trim }}|",
    "repr": """{{ ['a', "it's", 'q"', 'both\\'"', 'n\\n', 1, 1.0, true, none, {'k': (1,)}, [], (), {}, 'é\u200b\x07'] }}""",
    "float_text": "{{ [1.0, 0.1, 1e16, 1e15, 123456789.123, 1e-4, 1e-5, 1.5e300, 2.5, 100.0, 1e22] }}",
    "int_literals": "{{ [0x1f, 0b101, 0o17, 1_000, 0, 1_0.5_0, 1e3, 2E-2] }}",
    "set_scope": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "if_no_scope": "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
    "set_block": "{% set x %}\n a {{ 1 + 1 }}\n{% endset %}[{{ x }}]{{ x | length }}",
    "set_tuple": "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (d, e) = [3, 4] %}{{ d + e }}",
    "set_tuple_wrong": "{% set a, b = 1, 2, 3 %}",
    "namespace": "{% set ns = namespace(n=0, s='') %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% if i is odd %}{% set ns.s = ns.s ~ i %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.z is defined }}{{ ns['n'] }}",
    "namespace_wrong": "{% set ns = {} %}{% set ns.x = 1 %}",
    "for_else": "{% for x in [] %}a{% else %}none{% endfor %}{% for x in [1] %}a{% else %}none{% endfor %}",
    "for_filter": "{% for x in range(6) if x % 2 %}{{ loop.index }}{{ loop.length }}{{ x }}{{ ',' if not loop.last }}{% else %}no{% endfor %}",
    "for_string": "{% for c in 'añb' %}[{{ c }}]{% endfor %}",
    "for_dict": "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "for_undefined": "{% for x in nothing %}a{% else %}b{% endfor %}",
    "for_none": "{% for x in none %}a{% endfor %}",
    "for_int": "{% for x in 3 %}a{% endfor %}",
    "for_tuple": "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "loop_nested": "{% for a in 'xy' %}{% for b in 'pq' %}{{ loop.index }}{% endfor %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "loop_saved": "{% for a in 'xy' %}{% set outer = loop %}{% for b in 'pq' %}{{ outer.index }}{{ loop.index }}{{ outer.revindex0 }} {% endfor %}{% endfor %}",
    "loop_cycle": "{% for a in 'wxyz' %}{{ loop.cycle('odd', 'even') }}{% endfor %}",
    "loop_outside": "{{ loop is defined }}",
    "break_continue": "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "break_nested": "{% for i in range(3) %}{% for j in range(3) %}{% if j == i %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "elif": "{% for i in range(4) %}{% if i == 0 %}a{% elif i == 1 %}b{% elif i == 2 %}c{% else %}d{% endif %}{% endfor %}",
    "macro_defaults": "{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, a='x') }}{{ m() }}",
    "macro_too_many": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "macro_unknown_name": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "macro_sees_top": "{% macro m() %}{{ x }}{% set x = 5 %}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}",
    "macro_recursive": "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "macro_no_loop": "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}",
    "macro_text": "{% macro m() %}\n a\n{% endmacro %}{{ m() | trim | upper ~ m() | length }}",
    "generation_scope": "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
    "undefined_prints_nothing": "[{{ nothing }}][{{ messages[0].nothing }}][{{ nothing ~ 'x' }}]",
    "undefined_attribute": "{{ nothing.x }}",
    "undefined_item": "{{ nothing['x'] }}",
    "undefined_plus": "{{ nothing + 1 }}",
    "undefined_call": "{{ nothing() }}",
    "undefined_less": "{{ nothing < 1 }}",
    "undefined_equal": "{{ nothing == none }}{{ nothing == other }}{{ nothing in [1] }}{{ 1 in nothing }}{{ nothing | length }}",
    "undefined_json": "{{ nothing | tojson }}",
    "none_attribute": "[{{ none.x }}][{{ (none)['x'] }}]",
    "precedence": "{{ 1 + 2 ~ 3 }}|{{ 2 * 3 ** 2 }}|{{ -2 ** 2 }}|{{ 2 ** 3 ** 2 }}|{{ not 1 == 2 }}|{{ 1 if false else 2 if false else 3 }}|{{ 'a' ~ 1 + 2 }}",
    "filter_precedence": "{{ 'a' + 'b' | upper }}|{{ -1 | abs }}|{{ ('a' + 'b') | upper }}|{{ 1 in [1] | list }}|{{ not '' | length }}",
    "compare_chain": "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 == true }}{{ 3 > 2 >= 2 != 1 }}{{ 1 in [1] == true }}",
    "is_not": "{{ 1 is not none }}{{ x is not defined }}{{ 1 is not string and true }}{{ not x is defined }}",
    "test_args": "{{ 4 is divisibleby 2 }}{{ 4 is divisibleby(3) }}{{ 'a' is equalto 'a' }}{{ 1 is in [1, 2] }}{{ 2 is gt 1 }}{{ 1 is eq 1.0 }}{{ 'a' is in 'abc' }}",
    "tests_table": "{% for v in [1, 1.5, true, none, 'a', [1], (1,), {'a': 1}] %}{{ v is string }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}{{ v is number }}{{ v is boolean }}{{ v is none }}{{ v is true }}{{ v is integer }}{{ v is float }};{% endfor %}",
    "case_tests": "{{ 'ABC' is upper }}{{ 'aBc' is lower }}{{ '12' is upper }}{{ 'éa' is lower }}{{ 'É' is upper }}",
    "slices": "{{ 'abcdef'[1:3] }}{{ 'abcdef'[::-1] }}{{ [1,2,3,4][-2:] }}{{ [1,2,3,4][::2] }}{{ 'añoß'[1:-1] }}{{ (1,2,3)[:1] }}{{ [1,2,3][5:] }}{{ [1,2,3][10::-1] }}",
    "index": "{{ [1,2,3][-1] }}{{ [1][5] }}{{ 'äb'[0] }}{{ 'ab'[9] }}{{ (1,2)[true] }}{{ [[1,2],[3]].0.1 }}{{ {'a': 1}.a }}{{ {1: 'x'}[1.0] }}",
    "dict_method_wins": "{{ {'items': 5}.items() | list }}{{ {'items': 5}['items'] }}{{ {'get': 1}.get('get') }}",
    "dict_get": "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
    "dict_same_key": "{{ {1: 'a', true: 'b', 1.0: 'c', '1': 'd'} }}",
    "dict_list_key": "{{ {[1]: 2} }}",
    "tojson_kinds": "{{ [1, 1.0, true, none, 'a\"\\\\\\n\\t\\x01é😀/<>&', {'1': 2, 2: 3, none: 4, true: 5, 1.5: 6}, (1, 2), [], {}] | tojson }}",
    "tojson_ascii": "{{ 'é😀\\x7f' | tojson(ensure_ascii=true) }}",
    "tojson_indent": "{{ tools | tojson(indent=2) }}{{ {'a': [], 'b': {}, 'c': [1, [2]]} | tojson(indent=0) }}{{ [1] | tojson(indent='--') }}",
    "tojson_sorted": "{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "filters_text": "{{ ' x ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'aB' | upper }}|{{ 'aB' | lower }}|{{ 'hello wORLD' | capitalize }}|{{ \"it's a-test (of) foo_bar\" | title }}|{{ 'aaa' | replace('a', 'b', 2) }}|{{ 12 | replace(1, 3) }}",
    "filters_default": "{{ x | default('d') }}{{ x | d }}{{ '' | default('e') }}{{ '' | default('f', true) }}{{ none | default('g') }}{{ none | default('h', boolean=true) }}",
    "filters_list": "{{ [3,1,2] | first }}{{ [3,1,2] | last }}{{ 'abc' | first }}{{ 'abc' | last }}{{ [] | first }}|{{ 'abc' | list }}{{ {'a': 1} | list }}{{ [1,2] | reverse | list }}{{ 'abc' | reverse }}",
    "filters_join": "{{ [1, 'a', none, 2.0] | join }}{{ [1, 2] | join(', ') }}{{ messages | join('|', attribute='role') }}{{ 'abc' | join('-') }}",
    "filters_map": "{{ messages | map(attribute='role') | list }}{{ messages | map(attribute='tool_calls.0.id', default='-') | list }}{{ ['a', 'b'] | map('upper') | join }}{{ ['xa', 'xb'] | map('replace', 'x', 'y') | list }}",
    "filters_select": "{{ messages | selectattr('role', 'equalto', 'tool') | map(attribute='content') | list }}{{ messages | rejectattr('content') | list | length }}{{ messages | selectattr('tool_calls', 'defined') | list | length }}{{ [1, 2, 3] | select('odd') | list }}{{ [0, 1, ''] | reject | list }}{{ [1, 5] | select('gt', 2) | list }}",
    "filters_number": "{{ '12' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ '3.9' | int }}{{ 3.9 | int }}{{ 'ff' | int(base=16) }}{{ ' 5 ' | int }}{{ none | int }}|{{ '1.5' | float }}{{ 'x' | float }}{{ 2 | float }}|{{ -3 | abs }}{{ (-3.5) | abs }}{{ (true) | abs }}",
    "filters_round": "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1.005 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 5 | round }} {{ 7.0 | round | int }} {{ -0.4 | round }}",
    "filters_sort": "{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(true) }}{{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}{{ ['b', 'A', 'c'] | sort }}{{ [3, 1, 2] | sort(reverse=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | list }}",
    "filters_sort_mixed": "{{ [1, 'a'] | sort }}",
    "filters_unique": "{{ ['a', 'A', 'b', 'a', 1, 1.0] | unique | list }}{{ ['a', 'A'] | unique(case_sensitive=true) | list }}{{ messages | unique(attribute='role') | map(attribute='role') | join(',') }}",
    "filters_indent": "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, first=true) }}|{{ 'a\\n\\nb' | indent(1, blank=true) }}|{{ 'a\\nb\\n' | indent('> ') }}",
    "filters_items": "{{ {'a': 1, 'b': [2]} | items | list }}{{ nothing | items | list }}",
    "filters_items_wrong": "{{ [1] | items | list }}",
    "filters_string": "{{ 1.0 | string ~ true | string ~ none | string ~ [1] | string }}{{ '<b>' | safe }}{{ [1, 'x'] | string | length }}",
    "length": "{{ 'aé😀' | length }}{{ [] | count }}{{ {'a': 1} | length }}",
    "length_wrong": "{{ 5 | length }}",
    "methods_strip": "{{ '  a '.strip() }}|{{ '  a '.lstrip() }}|{{ '  a '.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'ñañ'.strip('ñ') }}",
    "methods_split": "{{ ' a  b c '.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a b  c '.split(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a<t>b<t>'.split('<t>')[-1] == '' }}",
    "methods_split_wrong": "{{ 'a'.split('') }}",
    "methods_lines": "{{ 'a\\nb\\r\\nc\\r\\rd\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}{{ ''.splitlines() }}",
    "methods_find": "{{ 'añbañ'.find('b') }}{{ 'abc'.find('x') }}{{ 'aba'.find('a', 1) }}{{ 'aba'.rfind('a') }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('c', 0, 2) }}{{ 'abab'.count('ab') }}{{ 'abc'.find('b', -2) }}",
    "methods_case": "{{ 'aé ß'.upper() }}{{ 'AÉ'.lower() }}{{ \"it's a_test x2y\".title() }}{{ 'hELLO'.capitalize() }}{{ 'ΑΣ ПРИВЕТ Ё'.lower() }}{{ 'привет ё ÿ'.upper() }}",
    "methods_affix": "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'bc')) }}{{ 'abc'.startswith('') }}{{ 'abc'.removeprefix('ab') }}{{ 'abc'.removesuffix('x') }}",
    "methods_replace": "{{ 'aXbX'.replace('X', '--') }}{{ 'abc'.replace('', '.') }}{{ 'aaa'.replace('a', 'b', 1) }}{{ 'é'.replace('', '-', 1) }}",
    "methods_join": "{{ ', '.join(['a', 'b']) }}{{ '-'.join('abc') }}",
    "methods_join_wrong": "{{ ','.join([1]) }}",
    "methods_list": "{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}",
    "method_append_refused": "{% set l = [] %}{{ l.append(1) }}",
    "method_unknown": "{{ 'a'.nonsense() }}",
    "internals": "{{ ''.__class__.__mro__ }}",
    "internals_item": "{{ ''['__class__']['__mro__'] }}",
    "internals_map": "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "arithmetic": "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}{{ 2 ** -1 }}{{ 'ab' * 2 }}{{ 2 * [1] }}{{ true + true }}{{ [1] + [2] }}{{ (1,) + (2,) }}{{ -true }}{{ +5 }}",
    "division_by_zero": "{{ 1 / 0 }}",
    "modulo_by_zero": "{{ 1 % 0 }}",
    "add_mixed": "{{ 'a' + 1 }}",
    "add_none": "{{ 'a' + none }}",
    "less_mixed": "{{ 1 < 'a' }}",
    "in_mixed": "{{ 1 in 'a' }}",
    "in_kinds": "{{ 'b' in 'abc' }}{{ 'k' in {'k': 1} }}{{ 2 not in [1] }}{{ '' in '' }}{{ 1.0 in [1] }}{{ none in [none] }}",
    "equality": "{{ 1 == 1.0 }}{{ 1 == '1' }}{{ [1] == [1.0] }}{{ [1] == (1,) }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ none == false }}{{ 0 == false }}{{ 'a' != 'b' }}",
    "order_kinds": "{{ 'a' < 'b' }}{{ 'Z' < 'a' }}{{ [1, 2] < [1, 3] }}{{ (1,) < (1, 2) }}{{ 'é' > 'z' }}{{ 1 < 1.5 }}",
    "and_or_values": "{{ '' or 'x' }}{{ 'a' and 'b' }}{{ 0 and nothing.x }}{{ 1 or nothing.x }}{{ none or [] or {} }}",
    "truthiness": "{% for v in [0, 0.0, '', [], {}, (), none, false, 'a', ' ', [0], -1] %}{{ 1 if v else 0 }}{% endfor %}",
    "ternary_no_else": "[{{ 1 if false }}][{{ (1 if false) is defined }}]",
    "big_integers": "{{ 18446744073709551615 + 1 }}|{{ 2 ** 100 }}|{{ -9223372036854775808 - 1 }}|{{ 9007199254740993 == 9007199254740992.0 }}",
    "filter_block": "{% filter upper %}a{{ 1 }}{% endfilter %}|{% filter replace('a', 'b') | trim %} aa {% endfilter %}|{% filter indent(2, true) %}x\ny{% endfilter %}",
    "filter_block_scope": "{% filter trim %}{% set x = 1 %} {{ x }} {% endfilter %}{{ x is defined }}",
    "filter_block_in_loop": "{% for m in messages %}{% filter upper %}{{ loop.index }}{{ m.role }}{% endfilter %},{% endfor %}",
    "filter_block_wrong": "{% filter abs %}x{% endfilter %}",
    "filter_block_unclosed": "{% filter upper %}x",
    "set_block_filter": "{% set x | trim | upper %}\n a {{ 1 + 1 }}\n{% endset %}[{{ x }}]{% set ns = namespace(t='') %}{% set ns.t | trim %} y {% endset %}[{{ ns.t }}]",
    "methods_rsplit": "{{ 'a,b,,c'.rsplit(',') }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b  c '.rsplit() }}{{ ' a b  c '.rsplit(none, 1) }}{{ 'aaa'.rsplit('aa') }}{{ 'xaaay'.rsplit('aa') }}{{ ''.rsplit() }}{{ ''.rsplit(',') }}{{ 'é-ñ-'.rsplit('-', 1) }}{{ 'a'.rsplit('ab') }}",
    "methods_rsplit_wrong": "{{ 'a'.rsplit('') }}",
    "methods_format": "{{ 'a{}b{}'.format(1, 'x') }}{{ '{0}{1}{0}'.format('a', none) }}{{ '{{}}{}'.format([1, 'a']) }}{{ 'plain'.format() }}{{ '{}'.format(true) }}{{ 'é{}'.format(1.0) }}",
    "methods_format_few": "{{ '{}{}'.format(1) }}",
    "methods_format_mixed": "{{ '{}{0}'.format(1) }}",
    "methods_format_brace": "{{ 'a{'.format(1) }}",
    "filters_sum": "{{ [1, 2, 3] | sum }}{{ [1, 2.5] | sum(start=1) }}{{ [] | sum }}{{ messages | map(attribute='role') | map('length') | sum }}{{ [{'n': 1}, {'n': 4}] | sum(attribute='n') }}{{ [true, true] | sum }}",
    "filters_sum_wrong": "{{ ['a'] | sum }}",
    "filters_extremes": "{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'A', 'a'] | min }}{{ ['b', 'A', 'B'] | max }}{{ ['b', 'A'] | min(case_sensitive=true) }}{{ 'hello' | max }}{{ [1.0, 1] | max }}{{ {'x': 1, 'y': 2} | max }}[{{ [] | min }}]{{ messages | max(attribute='role') | tojson }}",
    "filters_extremes_wrong": "{{ [1, 'a'] | min }}",
    "filters_of_none": "{{ none | selectattr('x') | list }}{{ none | map('upper') | list }}{{ 0 | select | list }}{{ '' | reject | list }}{{ nothing | rejectattr('x', 'equalto', 1) | list }}{{ none | map(attribute='x') | list | length }}",
    "filters_of_number": "{{ 3 | map('string') | list }}",
    "dict_many_keys": "{% set d = {'b': 1, 2: 'x', none: 3, (1, 'a'): 4, 2.5: 5, 'a': 6, (1, 2): 7, 2.0: 'y', -1: 8, true: 9, 'b': 10} %}{{ d }}{{ d[2] }}{{ d[(1, 'a')] }}{{ d[none] }}{{ d[1] }}{{ d[2.5] }}{{ d.b }}{{ d[(1,)] is defined }}{{ d['2'] is defined }}{{ (1, 2) in d }}{{ d.get((1, 2.0)) }}",
    "dict_list_lookup": "[{{ {'a': 1}[[1]] }}]",
    "kwargs_mixed": "{% macro m(a, b='x', c=none) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}{{ m(1, c=[2]) }}{{ m(a=1, b=2, c=3) }}{{ m(1, 2) }}",
    "macro_default_text": "{% macro m(t, sep=', ', last=' and ') -%}{% for x in t %}{{ x }}{% if not loop.last %}{{ sep if loop.revindex > 2 else last }}{% endif %}{% endfor %}{%- endmacro %}{{ m('abc') }}{{ m([1, 2, 3, 4], sep=';') }}",
    "loop_attributes": "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.previtem is undefined }};{% endfor %}",
    "loop_unpack_tuples": "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }}{% endfor %}{% for k, v in {'a': 1, 'b': {'c': 2}} | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "loop_break_in_else": "{% for i in [1, 2, 3] if i > 1 %}{{ i }}{% if i == 2 %}{% continue %}{% endif %}!{% else %}none{% endfor %}",
    "conditional_chain": "{{ 'a' if 0 else 'b' if '' else 'c' if [] else 'd' }}{{ ('x' if nothing) ~ '.' }}{{ 'y' if messages else 'n' }}",
    "json_nested": "{{ {'a': [1, {'b': none}], 'é': 'ü', 'f': 1e20, 'g': -0.0} | tojson(indent=4, ensure_ascii=False) }}{{ tools[0].function.parameters.properties | tojson(indent=none) }}",
    "text_steps": "{% set t = '<think>a</think>b</think>c' %}{{ t.split('</think>')[-1] }}{{ t.split('</think>')[0].split('<think>')[-1] }}{{ (t.split('</think>') | first).lstrip('<think>') }}{{ t[7:] }}{{ t[:-1] }}{{ t[-3:] }}{{ t[::-2] }}{{ 'añb'[::-1] }}{{ 'añb😀'[1:3] }}{{ 'añb😀'[-1] }}{{ 'añb😀' | last }}{{ 'añb😀' | reverse }}",
    "strip_sets": "{{ 'ñañ x'.rstrip('xñ ') }}|{{ '😀a😀'.strip('😀') }}|{{ 'aaa'.strip('a') }}|{{ 'ab'.lstrip('') }}|{{ '\u2003a\u3000'.rstrip() }}|",
    "inline_if_in_call": "{{ range(1, 3 if tools else 2) | list }}{{ messages[0 if tools else 1].role }}{{ [1, 2, 3][1:][0] }}{{ {'a': {'b': [1, 2]}}.a.b[-1] }}",
    "not_in_chain": "{{ 'x' not in 'abc' and 1 not in [2] and 'k' not in {} }}{{ not 'a' in 'abc' }}{{ 1 < 2 and 2 < 3 or false }}{{ 'tool' in (messages | map(attribute='role') | list) }}",
    "is_in_filters": "{{ messages | selectattr('content', 'string') | list | length }}{{ messages | selectattr('content', 'none') | list | length }}{{ messages | rejectattr('role', 'in', ['tool', 'user']) | map(attribute='role') | list }}{{ messages | selectattr('tool_calls', 'sequence') | list | length }}",
    "call_plain": "{% macro box(title) %}<{{ title }}|{{ caller() }}>{% endmacro %}{% call box('t') %}\n a {{ 1 + 1 }}\n{% endcall %}!",
    "call_arguments": "{% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}{% call(x, n=7, m=x) each('abc') %}{{ x }}{{ n }}{{ m }}{% endcall %}",
    "call_named_arguments": "{% macro m() %}{{ caller(1, c=3) }}{{ caller(b=4, a=5) }}{% endmacro %}{% call(a, b=2, c=a) m() %}[{{ a }}{{ b }}{{ c }}]{% endcall %}",
    "call_too_many_arguments": "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call m() %}x{% endcall %}",
    "call_unknown_argument": "{% macro m() %}{{ caller(z=1) }}{% endmacro %}{% call(a) m() %}x{% endcall %}",
    "call_missing_argument": "{% macro m() %}{{ caller() }}{% endmacro %}{% call(a) m() %}[{{ a }}{{ a is defined }}]{% endcall %}",
    "call_without_block": "{% macro m() %}[{{ caller() }}]{% endmacro %}{{ m() }}",
    "call_unused": "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}",
    "call_caller_defined": "{% macro m() %}{{ 'yes' if caller is defined else 'no' }}{{ caller is callable }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "call_caller_outside": "[{{ caller is defined }}]",
    "call_caller_given": "{% macro a() %}<{{ caller(3) }}>{% endmacro %}{% macro b(x) %}b{{ x }}{% endmacro %}{{ a(caller=b) }}",
    "call_caller_parameter": "{% macro m(caller=none) %}x{{ caller() if caller else '-' }}{% endmacro %}{% call m() %}b{% endcall %}{{ m() }}",
    "call_caller_parameter_wrong": "{% macro m(caller) %}{{ caller() }}{% endmacro %}{% call m() %}b{% endcall %}",
    "call_caller_parameter_unread": "{% macro m(caller) %}x{% endmacro %}{% call m() %}b{% endcall %}",
    "call_caller_set": "{% macro m() %}{% set caller = 3 %}{{ caller }}{% endmacro %}{{ m() }}",
    "call_caller_set_and_called": "{% macro m() %}{% set caller = 3 %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}",
    "call_caller_later": "{% macro m() %}{% set f = caller %}{{ f() }}{{ f() | upper }}{% endmacro %}{% call m() %}b{% endcall %}",
    "call_caller_in_nested": "{% macro outer() %}{% call inner() %}{{ caller() }}{% endcall %}{% endmacro %}{% macro inner() %}<{{ caller() }}>{% endmacro %}{% call outer() %}x{% endcall %}",
    "call_forwarded": "{% macro outer() %}{% set given = caller %}{% call inner() %}({{ given() }}){% endcall %}{% endmacro %}{% macro inner() %}<{{ caller() }}>{% endmacro %}{% call outer() %}x{% endcall %}",
    "call_caller_with_block": "{% macro m() %}{% call caller() %}in{% endcall %}{% endmacro %}{% call m() %}[{{ caller() }}]{% endcall %}",
    "call_caller_kept": "{% set ns = namespace() %}{% macro k() %}{% set ns.f = caller %}{% endmacro %}{% call(x) k() %}b{{ x }}{% endcall %}{{ ns.f(1) }}",
    "callable": "{{ nothing is callable }}{{ 'a' is callable }}{{ [] is callable }}{{ range is callable }}{{ none is callable }}{{ 'a'.upper is callable }}",
    "call_scopes": "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ caller() }}{{ x }}{% endmacro %}{% call m() %}{{ x }}{% set x = 3 %}{{ x }}{% endcall %}{{ x }}",
    "call_sees_loop": "{% macro m() %}<{{ caller() }}>{% endmacro %}{% for i in 'ab' %}{% call m() %}{{ loop.index }}{{ i }}{{ loop.last }}{% endcall %}{% endfor %}",
    "call_in_macro": "{% macro tag(n) %}<{{ n }}>{{ caller() }}</{{ n }}>{% endmacro %}{% macro page(t) %}{% call tag('a') %}{% call tag('b') %}{{ t }}{% endcall %}{% endcall %}{% endmacro %}{{ page('hi') }}{{ page(2) }}",
    "call_in_set": "{% macro m() %}{{ caller() | trim }}{% endmacro %}{% set y %}{% call m() %} q {% endcall %}{% endset %}[{{ y }}]{% filter upper %}{% call m() %} r {% endcall %}{% endfilter %}",
    "call_recursive": "{% macro tree(items) %}({% for i in items %}{{ caller(i) if i is not iterable else tree(i, caller=caller) }}{% endfor %}){% endmacro %}{% call(n) tree([1, [2, [3]], 4]) %}<{{ n }}>{% endcall %}",
    "call_messages": "{% macro turn(role) -%}\n[{{ role }}]{{ caller() }}[/{{ role }}]\n{% endmacro %}\n{%- for m in messages %}\n{%- call turn(m.role) %}\n  {{- m.content or m.tool_calls[0].function.name }}\n{%- endcall %}\n{%- endfor %}",
    "call_trims": "a\n  {% call m() %}\n b\n  {% endcall %}\nc{% macro m() %}{{ caller() }}{% endmacro %}",
    "call_trims_after": "{% macro m() %}{{ caller() }}{% endmacro %}\na\n  {% call m() %}\n b\n  {% endcall %}\nc\n  {%- call m() -%}\n b\n  {%- endcall -%}\nc",
    "call_range": "{% call range(3) %}{% endcall %}",
    "call_dict": "{% call dict(a=1) %}{% endcall %}",
    "call_method": "{% call 'a'.upper() %}{% endcall %}",
    "call_no_call": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m %}{% endcall %}",
    "call_filtered": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() | upper %}{% endcall %}",
    "call_conditional": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() if true %}x{% endcall %}",
    "call_undefined": "{% call nothing() %}x{% endcall %}",
    "call_unclosed": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x",
    "call_break": "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in [1] %}{% call m() %}{% break %}{% endcall %}{% endfor %}",
    "call_named_end": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall m %}",
    "call_no_parentheses": "{% macro m() %}{{ caller() }}{% endmacro %}{% call(a m() %}x{% endcall %}",
    "macro_named_end": "{% macro m() %}x{% endmacro m %}{{ m() }}",
    "macro_trailing_comma": "{% macro m(a,) %}{{ a }}{% endmacro %}{{ m(1) }}",
    "macro_varargs": "{% macro m(a) %}{{ a }}{{ varargs }}{{ varargs | length }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, 2, 'x') }}{{ m() }}",
    "macro_kwargs": "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, d=[1], a=0, e='x') }}{{ m(1, a=9) }}",
    "macro_varargs_kwargs": "{% macro m() %}{% for v in varargs %}{{ v }},{% endfor %}{% for k, v in kwargs.items() %}{{ k }}={{ v }};{% endfor %}{{ caller() if caller is defined }}{% endmacro %}{{ m(1, 2, x=3) }}{% call m(4, y=5) %}c{% endcall %}",
    "macro_kwargs_caller": "{% macro m() %}{{ kwargs | length }}{{ kwargs.caller() }}{% endmacro %}{% call m() %}c{% endcall %}",
    "macro_varargs_set": "{% macro m() %}{% set varargs = 1 %}{{ varargs }}{% endmacro %}{{ m() }}",
    "macro_varargs_set_many": "{% macro m() %}{% set varargs = 1 %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "macro_varargs_outside": "{{ varargs is defined }}{{ kwargs is defined }}",
    "macro_twice": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "macro_in_loop": "{% for a in 'xy' %}{% macro m(b) %}<{{ a }}{{ b }}{{ loop.index }}>{% endmacro %}{{ m(1) }}{% endfor %}{{ m is defined }}",
    "macro_in_macro": "{% macro o(p) %}{% macro i(n) %}{{ n }}{{ p }}{% if n %}{{ i(n - 1) }}{% endif %}{% endmacro %}{{ i(2) }}{% endmacro %}{{ o('a') }}{{ o('b') }}{{ i is defined }}",
    "macro_in_call": "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% macro k(x) %}[{{ x }}]{% endmacro %}{{ k(1) ~ k(2) }}{% endcall %}",
    "macro_in_set": "{% set y %}{% macro k(x) %}[{{ x }}]{% endmacro %}{{ k(1) }}{% endset %}{{ y }}{{ k is defined }}",
    "recursive": "{% for x in [1, [2, [3, 4], 5], []] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "recursive_depth": "{% for x in [1, [2, [3]], 4] recursive %}{{ loop.depth }}{{ loop.depth0 }}{% if x is iterable %}({{ loop(x) }}{{ loop.depth }}{{ loop.index }}/{{ loop.length }}){% else %}{{ x }}{% endif %},{% endfor %}",
    "recursive_dicts": "{% set t = [{'n': 'a', 'c': [{'n': 'b', 'c': [{'n': 'c'}]}, {'n': 'd'}]}, {'n': 'e'}] %}{% for k in t recursive %}\n{{ '  ' * loop.depth0 }}- {{ k.n }}{{ loop.last }}\n{{ loop(k.c) }}{% endfor %}",
    "recursive_schema": "{% for name, spec in tools[0].function.parameters.properties | dictsort recursive %}{{ '.' * loop.depth }}{{ name }}:{{ spec.type }}{% if spec.properties is defined %}{{ loop(spec.properties.items()) }}{% endif %};{% endfor %}",
    "recursive_filter": "{% for x in [3, [1, 0, [2, 5]], 0, []] if x recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{{ loop.index }}{{ loop.length }}{% endif %}{% endfor %}",
    "recursive_else": "{% for x in [[], [1]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% else %}none{% endfor %}",
    "recursive_else_outer": "{% for x in [] recursive %}{{ x }}{% else %}none{% endfor %}",
    "recursive_break": "{% for x in [[1, 2, 3], 4, 5] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% elif x == 2 or x == 5 %}{% break %}{% else %}{{ x }}{% endif %}{% endfor %}",
    "recursive_scopes": "{% set y = 0 %}{% for x in [[1, 2], 3] recursive %}{% set y = y + 1 %}{% if x is iterable %}({{ loop(x) }}){% endif %}{{ y }}{% endfor %}{{ y }}",
    "recursive_outer_names": "{% set ns = namespace(n=0) %}{% for a in 'pq' %}{% for x in [1, [2]] recursive %}{{ a }}{{ x if x is not iterable else loop(x) }}{% set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}{{ ns.n }}",
    "recursive_from_inner": "{% for x in [[1, [2]], 3] recursive %}{% set outer = loop %}{% if x is iterable %}{% for y in [x, []] %}<{{ outer(y) }}{{ loop.index }}{{ loop.depth }}>{% endfor %}{% else %}{{ x }}{% endif %}{% endfor %}",
    "recursive_to_macro": "{% macro m(f, x) %}[{{ f(x) }}]{% endmacro %}{% for x in [[1, [2]], 3] recursive %}{{ m(loop, x) if x is iterable else x }}{% endfor %}",
    "recursive_in_call": "{% macro m() %}[{{ caller() }}]{% endmacro %}{% for x in [[1, [2]], 3] recursive %}{% call m() %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endcall %}{% endfor %}",
    "recursive_iterable": "{% for x in [[1], 2] recursive %}{{ loop(iterable=x) if x is iterable else x }}{% endfor %}",
    "recursive_filtered_text": "{% for x in ['a', ['b', ['c']]] recursive %}{{ x if x is string else loop(x) | upper | replace('B', '-') }}{% endfor %}",
    "recursive_no_argument": "{% for x in [1] recursive %}{{ loop() }}{% endfor %}",
    "recursive_two_arguments": "{% for x in [1] recursive %}{{ loop([], 2) }}{% endfor %}",
    "recursive_wrong_name": "{% for x in [1] recursive %}{{ loop(items=[]) }}{% endfor %}",
    "recursive_of_number": "{% for x in [1] recursive %}{{ loop(x) }}{% endfor %}",
    "recursive_undefined": "{% for x in [1] recursive %}{{ x }}{{ loop(nothing) }}{{ loop(x.y) }}{% endfor %}",
    "recursive_missing": "{% for x in [1] %}{{ loop([]) }}{% endfor %}",
    "recursive_inner_only": "{% for x in [[1]] recursive %}{% for y in [x] %}{{ loop(y) }}{% endfor %}{% endfor %}",
    "recursive_order": "{% for x in [1] recursive if x %}{{ x }}{% endfor %}",
    "recursive_endless": "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    "recursive_call_block": "{% for x in [[1]] recursive %}{% call loop(x) %}{% endcall %}{% endfor %}",
    "loop_depth_plain": "{% for a in 'x' %}{% for b in 'y' %}{{ loop.depth }}{{ loop.depth0 }}{{ loop is callable }}{% endfor %}{% endfor %}",
    "loop_else_after_break": "{% for i in [1, 2] %}{% break %}{% else %}x{% endfor %}|{% for i in [1, 2] %}{% continue %}{% else %}x{% endfor %}|{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}y{% else %}x{% endfor %}|{% for i in [1, 2] if i > 1 %}{% continue %}{% else %}x{% endfor %}",
    "loop_in_filter": "{% for a in 'xy' %}{% for b in 'pq' if loop.first %}{{ a }}{{ b }}{% endfor %}{% endfor %}",
    "loop_in_filter_alone": "{% for b in 'pq' if loop.first %}{{ b }}{% endfor %}",
    "colon_in_tags": "{% if true: %}a{% elif x: %}b{% else: %}c{% endif %}{% for x in [1]: %}{{ x }}{% else: %}e{% endfor %}{% macro m(): %}m{{ caller() }}{% endmacro %}{% call m(): %}c{% endcall %}{% set y: %}y{% endset %}{% filter upper: %}f{{ y }}{% endfilter %}",
    "colon_at_end": "{% if true %}a{% endif: %}",
    "raise_in_macro": "{% macro m() %}{{ raise_exception('x') }}{% endmacro %}{{ m() }}",
    "generation_tags": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<e>{% endgeneration %}{% else %}{{ m.content }}{%- endif %}{% endfor %}",
    "range": "{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{{ range(0) | list }}",
    "range_large": "{{ range(100001) | list | length }}",
    "range_zero_step": "{{ range(1, 2, 0) | list }}",
    "raise": "{{ raise_exception('no') }}",
    "raise_not_reached": "{% if false %}{{ raise_exception('no') }}{% endif %}ok",
    "dict_function": "{{ dict(a=1, b='x') }}",
    "strftime": "{{ strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %j %p %I %y %%') }}",
    "print_tuple": "{{ 1, 2 }}{{ () }}{{ (1,) }}{{ (1) }}",
    "trailing_commas": "{{ [1, 2,] }}{{ {'a': 1,} }}{{ dict(a=1,) }}",
    "multi_line_tag": "{%\n  set x = [\n 1,\n 2\n]\n%}{{\n x\n}}",
    "syntax_unclosed": "{% if true %}x",
    "syntax_tag": "{% nonsense %}",
    "syntax_print": "{{ 1 + }}",
    "syntax_end": "{% endif %}",
    "syntax_string": "{{ 'abc }}",
    "syntax_brackets": "{{ (1] }}",
    "syntax_comment": "a {# b",
    "syntax_words": "{{ a b }}",
}


class Fuzz:
    """Random expressions over a few names, of kinds that mostly go together."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def number(self, depth):
        r = self.r
        if depth <= 0:
            return self.pick(
                "0", "1", "2", "7", "-3", "2.5", "0.1", "1e3", "n", "f", "true", "-n", "100"
            )
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({a} {self.pick('+', '-', '*', '/', '//', '%')} {b})",
            f"{a} {self.pick('+', '-', '*')} {b}",
            f"({a}) | abs",
            f"({a}) | round({r.randint(0, 3)})",
            f"({a}) | int",
            f"({a}) | float",
            f"({self.text(depth - 1)}) | length",
            f"({self.array(depth - 1)}) | length",
            f"({a} if {self.truth(depth - 1)} else {b})",
            f"({self.text(depth - 1)}).find({self.text(depth - 2)})",
            f"({self.text(depth - 1)}).count({self.text(depth - 2)})",
            f"d.a",
            f"d['n'] ",
            f"(({a}) ** 2)",
        )

    def text(self, depth):
        r = self.r
        if depth <= 0:
            return self.pick(
                "'a'",
                "'Ab c'",
                "''",
                "s",
                "t",
                "' x\\n'",
                '"it\'s"',
                "d.s",
                "'\u00e9\u4f60'",
                "'a,b,c'",
            )
        a, b = self.text(depth - 1), self.text(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} ~ {self.any(depth - 1)})",
            f"({a}) | {self.pick('upper', 'lower', 'trim', 'capitalize', 'title', 'reverse', 'string')}",
            f"({a}).{self.pick('upper', 'lower', 'strip', 'lstrip', 'rstrip', 'title', 'capitalize')}()",
            f"({a}) | replace({b}, {self.text(depth - 2)})",
            f"({a}).replace({b}, {self.text(depth - 2)})",
            f"({a})[{r.randint(-3, 3)}:{r.randint(-3, 6)}]",
            f"({a})[::{self.pick('-1', '2', '-2', '1')}]",
            f"({a} * {r.randint(-1, 3)})",
            f"({self.array(depth - 1)}) | join({b})",
            f"({self.any(depth - 1)}) | tojson",
            f"({self.any(depth - 1)}) | string",
            f"({a}) | default({b}, true)",
            f"({a} if {self.truth(depth - 1)} else {b})",
            f"({a}).strip({b})",
            f"({a}) | indent({r.randint(0, 4)})",
            f"missing | default({a})",
        )

    def array(self, depth):
        r = self.r
        if depth <= 0:
            return self.pick(
                "[]", "[1, 2, 3]", "l", "['b', 'A', 'c']", "d.l", "[none, true]", "[[1], ['x']]"
            )
        a = self.array(depth - 1)
        return self.pick(
            f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
            f"({a} + {self.array(depth - 1)})",
            f"({a})[{r.randint(-2, 2)}:]",
            f"({a})[::-1]",
            f"({a}) | list",
            f"({a}) | reverse | list",
            f"({a}) | map('string') | list",
            f"({a}) | select('{self.pick('string', 'number', 'defined', 'none', 'iterable')}') | list",
            f"({a}) | map('string') | sort",
            f"({a}) | map('string') | unique | list",
            (
                f"({self.text(depth - 1)}).split({self.pick('', ',', 'a')!r})"
                if r.random() < 0.5
                else f"({self.text(depth - 1)}).split()"
            ),
            f"range({r.randint(-1, 4)}) | list",
            f"({self.mapping(depth - 1)}).items() | list",
            f"({self.mapping(depth - 1)}) | dictsort",
            f"({self.text(depth - 1)}) | list",
        )

    def mapping(self, depth):
        if depth <= 0:
            return self.pick("{}", "d", "{'a': 1}", "{'b': [], 'a': none}")
        return self.pick(
            f"{{{self.text(depth - 2)}: {self.any(depth - 1)}, 'k': {self.any(depth - 1)}}}",
            f"dict(x={self.any(depth - 1)})",
        )

    def truth(self, depth):
        if depth <= 0:
            return self.pick("true", "false", "missing", "none", "n", "s", "''")
        a, b = self.truth(depth - 1), self.truth(depth - 1)
        x, y = self.number(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({a} {self.pick('and', 'or')} {b})",
            f"(not {a})",
            f"({x} {self.pick('==', '!=', '<', '<=', '>', '>=')} {y})",
            f"({x} < {y} <= {self.number(depth - 2)})",
            f"({self.text(depth - 1)} {self.pick('in', 'not in')} {self.text(depth - 1)})",
            f"({self.any(depth - 1)} {self.pick('in', 'not in')} {self.array(depth - 1)})",
            f"({self.any(depth - 1)} {self.pick('==', '!=')} {self.any(depth - 1)})",
            f"({self.any(depth - 1)} is {self.pick('', 'not ')}{self.pick('string', 'number', 'mapping', 'iterable', 'sequence', 'none', 'boolean', 'defined', 'undefined', 'integer', 'float', 'true', 'false')})",
            f"({self.text(depth - 1)}).startswith({self.text(depth - 2)})",
            f"({self.text(depth - 1)}).endswith({self.text(depth - 2)})",
        )

    def any(self, depth):
        if depth <= 0:
            return self.pick("1", "'x'", "none", "missing", "s", "l", "d", "f", "true")
        return self.pick(self.number, self.text, self.array, self.mapping, self.truth)(depth)

    def loose(self, depth):
        """Kinds that need not fit: many of these are errors, on both sides."""
        a, b = self.any(depth - 1), self.any(depth - 1)
        return self.pick(
            f"{a} {self.pick('+', '-', '*', '/', '<', '>=', 'in', 'and', '~')} {b}",
            f"({a}) | {self.pick('length', 'first', 'last', 'int', 'float', 'abs', 'upper', 'list', 'tojson', 'join', 'items | list', 'trim', 'title')}",
            f"({a})[{self.any(1)}]",
            f"({a}).{self.pick('a', 'strip()', 'items() | list', 'missing', 'get(1)')}",
            f"-({a})",
        )


FUZZ_NAMES = {
    "n": 5,
    "f": -1.25,
    "s": "Hello, W\u00f6rld",
    "t": " two\n lines ",
    "l": [1, "two", None, 3.5, ["x"]],
    "d": {"a": 1, "s": "str", "n": -2, "l": ["p", "q"], "items": "no"},
}


def huge(expected):
    """Integers over 128 bits are the one thing that ours refuses and jinja2 does not."""
    return expected is not None and len(expected) > 2000


def cases():
    def case(name, template, messages=None, tools=None, generate=False, extra=None):
        out = {
            "name": name,
            "template": template,
            "messages": messages or [],
            "tools": tools,
            "add_generation_prompt": generate,
            "extra": extra or {},
        }
        out["expected"] = render(out)
        return out

    for name, template in TEMPLATES.items():
        for conversation, (messages, tools) in CONVERSATIONS.items():
            for generate in (False, True):
                extra = {"enable_thinking": False} if generate and conversation == "system" else {}
                made = case(
                    f"{name}/{conversation}/{int(generate)}",
                    template,
                    messages,
                    tools,
                    generate,
                    extra,
                )
                # Long texts that repeat are named: see "templates" and "conversations".
                yield made | {
                    "template": f"@{name}",
                    "messages": conversation,
                    "tools": conversation,
                }
    messages, tools = CONVERSATIONS["tools"]
    for name, template in RULES.items():
        yield case(f"rule/{name}", template, messages, tools) | {
            "messages": "tools",
            "tools": "tools",
        }
    fuzz = Fuzz(1)
    for i in range(900):
        kind = fuzz.pick(fuzz.number, fuzz.text, fuzz.array, fuzz.truth, fuzz.mapping, fuzz.loose)
        made = case(f"fuzz/{i}", "{{ " + kind(fuzz.r.randint(1, 4)) + " }}", extra=FUZZ_NAMES)
        if not huge(made["expected"]) and len(made["template"]) < 400:
            # Names and conversation are the same for all: "fuzz_names", and none.
            yield {key: made[key] for key in ("name", "template", "expected")}


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def models():
    """Real models' templates stay with the models: only lengths and hashes of what they render."""
    import gguf

    cache = os.environ.get("KVART_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvart"
    )
    for file in ("SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"):
        reader = gguf.GGUFReader(os.path.join(cache, "models", file))
        template = reader.fields["tokenizer.chat_template"].contents()
        for conversation, (messages, tools) in CONVERSATIONS.items():
            for generate in (False, True):
                text = render(
                    {
                        "template": template,
                        "messages": messages,
                        "tools": tools,
                        "add_generation_prompt": generate,
                        "extra": {},
                    }
                )
                data = None if text is None else text.encode()
                yield {
                    "file": file,
                    "conversation": conversation,
                    "add_generation_prompt": generate,
                    "bytes": None if data is None else len(data),
                    "fnv1a": None if data is None else fnv1a(data),
                }


def main():
    data = {
        "conversations": {k: {"messages": m, "tools": t} for k, (m, t) in CONVERSATIONS.items()},
        "cases": list(cases()),
        "models": list(models()),
    }
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in data["cases"])
    hashes = ",\n".join(json.dumps(c) for c in data["models"])
    with open(DATA, "w", encoding="utf-8") as out:
        out.write('{"fuzz_names": ' + json.dumps(FUZZ_NAMES, ensure_ascii=False) + ",\n")
        out.write(
            '"conversations": ' + json.dumps(data["conversations"], ensure_ascii=False) + ",\n"
        )
        out.write('"templates": ' + json.dumps(TEMPLATES, ensure_ascii=False) + ",\n")
        out.write('"cases": [\n' + lines + "\n],\n")
        out.write('"models": [\n' + hashes + "\n]}\n")
    refused = sum(c["expected"] is None for c in data["cases"])
    print(
        f"{len(data['cases'])} cases, {refused} of them errors; {len(data['models'])} of real models"
    )


if __name__ == "__main__":
    main()
