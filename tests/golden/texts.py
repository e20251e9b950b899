"""Texts, chat templates and conversations of the golden files: varied on purpose, made without chance."""

# ruff: noqa: E501 (texts stay on one line)

_PLAIN = [
    "", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n \n", "a", " a", "a ", "  a  b   c    d", "Hello, world!",
    "Hello,world", "HELLO WORLD", "hello world's end", "it's they're we've I'm he'll she'd", "IT'S THEY'RE", "don't",
    "The quick brown fox jumps over the lazy dog.", "antidisestablishmentarianism", "snake_case camelCase kebab-case",
    "foo.bar(baz)", "e.g. i.e. etc.", "Mr. O'Neil & Sons, Inc.", "50% off!!!", "$12.50", "€9,99", "£3", "#hashtag @user",
    "http://example.org/a?b=c&d=e#f", "user@example.org", "C:\\path\\file.txt", "/usr/local/bin", "1", "12", "123",
    "1234", "12345678901234567890", "3.14159", "-7", "+7", "1e-5", "1,234,567.89", "0x1F", "½ cup", "x² + y³",
    "a ½ b", " ²", "①②③", "Ⅳ", "٣٤٥", "१२३", "１２３", "7 ½", "3/4", "2^10", "10:30", "1999-12-31", "No. 5", "v1.2.3",
]  # fmt: skip
_MATH = [
    "2 + 2 = 4", "12*7=84", "\\boxed{42}", "The answer is \\boxed{\\frac{1}{2}}.", "$x^2 - 3x + 2 = 0$", "\\sqrt{16}",
    "x ∈ ℝ, ∀ε>0 ∃δ>0", "∑_{i=1}^{n} i = n(n+1)/2", "∫₀¹ x dx", "α β γ δ", "π ≈ 3.14", "≤ ≥ ≠ ≡ ±", "a_1, a_2, ..., a_n",
    "f: ℕ → ℤ", "|x| < 1", "#### 18", "<<48/2=24>>24", "(a + b)^2 = a^2 + 2ab + b^2", "\\begin{align*}x&=1\\\\y&=2\\end{align*}",
    "So 3 x 4 is 12, and 12 + 5 is 17.\nThe answer is 17.",
]  # fmt: skip
_CODE = [
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}", "if x:\n        pass", "x=1;y=2",
    "SELECT * FROM t WHERE a = 'b';", "<div class=\"a\">text</div>", "{\"k\": [1, 2.5, null, true]}", "a && b || !c",
    "#include <stdio.h>\n", "print(f\"{x:.2f}\")", "lambda x: x**2", "// comment\n/* block */", "a->b::c<d>()",
    "\\n is not a newline", "tab\tseparated\tvalues", "    four\n        eight", "\t\tx", "x  # two spaces", "```python\nx\n```",
    "import numpy as np\n\n\nx = np.zeros((3, 4))",
]  # fmt: skip
_SCRIPTS = [
    "Привет, мир! 123", "Ελληνικά", "日本語のテキスト", "中文字符测试，你好。", "한국어 문장", "עברית", "العربية ١٢٣", "हिन्दी", "ไทย",
    "Tiếng Việt", "naïve café résumé", "Zürich Straße", "Ångström", "São Paulo", "Łódź", "İstanbul", "ﬁ ligature", "ｆｕｌｌ",
    "e\u0301 vs é", "क्षत्रिय", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𝟙𝟚𝟛", "😀", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "☃️ ❄", "a😀b", "🤖🤖🤖", "日本123語", "中文English混合",
    "\u200b", "a\u200bb", "\u00a0nbsp\u00a0", "\u2003em space", "\ufeffbom", "\u202eright-to-left", "line\u2028sep", "\x00", "\x07\x1b[0m",
    "“quotes” ‘single’ «guillemets»", "em—dash en–dash", "ellipsis…", "bullet • point", "→ ⇒ ↔", "©®™", "№ 7", "ǅ", "ß ẞ", "\U0010ffff",
]  # fmt: skip
_SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "a<|im_end|>b", "<|im_start|> <|im_end|>", "<repo_name>x<file_sep>",
    "<|im_start", "|im_end|>", "<|IM_END|>", "< |im_end|>", "<|im_end|><|im_end|>", "  <|im_end|>  ", "1<|im_end|>2",
    "<think>\nhm\n</think>", "<s>a</s>", "[INST] a [/INST]",
]  # fmt: skip
_WORDS = [
    "apple",
    "Zug",
    "7",
    "été",
    "42",
    "\n",
    "日本",
    "x_y",
    "...",
    "'",
    '"',
    "(",
    ")",
    "1.5",
    "the",
    "",
    "",
    "and\t-3",
    "😀",
    "?",
    "!",
    ":",
    "Σ",
    "don't",
    "100%",
    "a/b",
    "<x>",
    "Ωmega",
    "007",
]
# Long texts: the words in strides, so that all sorts stand beside all others.
_MIXED = [(" " * (1 + k % 3)).join(_WORDS[(i * k + k) % len(_WORDS)] for i in range(30)) for k in range(1, 36)]

TEXTS = _PLAIN + _MATH + _CODE + _SCRIPTS + _SPECIAL + _MIXED

# The forms of published templates, shortened to what matters here.
TEMPLATES = {
    # Qwen2.5: a default system message, roles passed on
    "qwen2.5": (
        "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
        "{%- else %}\n    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n"
        "{%- endif %}\n{%- for message in messages %}\n"
        '    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}\n'
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
    ),
    # Qwen3: namespace, reversed list, string methods, reasoning cut out of earlier answers, a switch
    "qwen3": (
        "{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n"
        "{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        '    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}\n'
        "        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- for message in messages %}\n"
        '    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}\n'
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
        "    {%- elif message.role == \"assistant\" %}\n        {%- set content = message.content %}\n        {%- set reasoning = '' %}\n"
        "        {%- if '</think>' in content %}\n"
        "            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
        "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n"
        "        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}\n"
        "            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}\n"
        "        {%- else %}\n            {{- '<|im_start|>assistant\\n' + content }}\n        {%- endif %}\n        {{- '<|im_end|>\\n' }}\n"
        "    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
    ),
    # Llama 3: writes the beginning-of-sequence token itself, trims contents
    "llama3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    # Mistral and Gemma: refuse roles out of turn
    "strict": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
    # What the environment offers: blocks trimmed, loop controls, tojson, generation blocks, absent tools
    "features": (
        "{% if tools is not none %}\ntools\n{% endif %}\n{% for message in messages %}\n  {% if message.role == 'system' %}\n"
        "    {% continue %}\n  {% endif %}\n  {{ message | tojson }}\n  {{ message.content | tojson(indent=2) }}\n"
        "  {% if message.role == 'assistant' %}\n  {% generation %}{{ message.content }}{% endgeneration %}\n"
        "    {% break %}\n  {% endif %}\n{% endfor %}\nend{{ '>' if add_generation_prompt }}\n"
    ),
}

CONVERSATIONS = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [{"role": "system", "content": "Be brief & <kind>."}, {"role": "user", "content": '  Hi "you"\n\n'}],
    [
        {"role": "user", "content": "Wie viel ist 12·3? 🤔"},
        {"role": "assistant", "content": "<think>\n12·3 = 36\n</think>\n\nDie Antwort ist 36."},
        {"role": "user", "content": "Und mal 2?"},
    ],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nb\n</think>\n\nc"}],
]
