//! Chat templates for models without one, by name.

/// Name of the template that is used by default.
pub const CHATML: &str = "chatml";

/// Names and templates. The templates omit the BOS token.
const TEMPLATES: [(&str, &str); 8] = [
    (
        "alpaca",
        "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}\n\n{% elif message.role == 'user' %}\
         ### Instruction:\n{{ message.content }}\n\n{% else %}### Response:\n{{ message.content }}{{ eos_token }}\n\n{% endif %}\
         {% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}",
    ),
    (
        CHATML,
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
         {% set role = 'model' if message.role == 'assistant' else message.role %}\
         {{ '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ),
    (
        "llama2",
        "{% if messages[0].role == 'system' %}{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}\
         {% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}\
         {% for message in turns %}{% if message.role == 'user' %}\
         {{ (bos_token if not loop.first else '') + '[INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}\
         {% elif message.role == 'assistant' %}{{ ' ' + message.content + ' ' + eos_token }}\
         {% else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim \
         + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
         {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    (
        "mistral",
        "{% for message in messages %}{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}\
         {% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}\
         {% else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
];

/// Returns the template of a name.
pub fn named(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, template)| *template)
}

/// Returns all names.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}
