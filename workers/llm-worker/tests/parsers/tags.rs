//! Calls in XML tags.
use crate::checked::{Setup, call, check_all, content, cut};

#[test]
fn functionary() {
    check_all(
        Setup::of("functionary", "none"),
        &[
            ("<function=add>{\"a\": 1}</function>", &[call("add", "{\"a\": 1}")]),
            (
                "Hi <function=now>{}</function>\n<function=now>{}</function>",
                &[content("Hi"), call("now", "{}"), call("now", "{}")],
            ),
            ("<function=sub>{}</function>", &[content("<function=sub>{}</function>")]),
            ("<function=add>x</function>", &[content("<function=add>x</function>")]),
            ("<function=add", &[content("<function=add")]),
            ("<function=add>", &[content("<function=add>")]),
        ],
    );
}

#[test]
fn qwen_coder() {
    let of = |inner: &str| format!("<tool_call>\n{inner}\n</tool_call>");
    let now = of("<function=now>\n</function>");
    let add =
        of("<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n-2\n</parameter>\n</function>");
    let say = of("<function=say>\n<parameter=text>\n<b> \"x\"\n\n  y</b>\n\n</parameter>\n</function>");
    let set = of(
        "<function=set>\n<parameter=flag>True</parameter><parameter=item>{\"k\": [1, \"2\"]}</parameter>\
        <parameter=name>\nnull\n</parameter><parameter=unit>C</parameter><parameter=value>2 dollars</parameter></function>",
    );
    let again = of("<function=set>\n<parameter=name>42</parameter><parameter=value>{\"a\"</parameter>\
        <parameter=any>[1]</parameter><parameter=new>7</parameter></function>");
    let two = format!("I do.\n{now}\n{add}\n");
    let one_mark = format!("{}\n{add}", now.trim_start_matches("<tool_call>\n"));
    let added = "{\"a\": 1, \"b\": -2}";
    check_all(
        Setup::of("qwen3_coder", "none"),
        &[
            (&now, &[call("now", "{}")]),
            (&add, &[call("add", added)]),
            (&say, &[call("say", r#"{"text": "<b> \"x\"\n\n  y</b>\n"}"#)]),
            (
                &set,
                &[call(
                    "set",
                    r#"{"flag": true, "item": {"k": [1, "2"]}, "name": null, "unit": "C", "value": "2 dollars"}"#,
                )],
            ),
            (&again, &[call("set", r#"{"name": "42", "value": "{\"a\"", "any": [1], "new": "7"}"#)]),
            (&two, &[content("I do."), call("now", "{}"), call("add", added)]),
            // The first mark may be missing, and the end tags.
            (&one_mark, &[call("now", "{}"), call("add", added)]),
            ("<tool_call><function=add><parameter=a>1</parameter></tool_call>", &[call("add", "{\"a\": 1}")]),
            ("<function=say><parameter=text>a</param", &[cut("say", "{\"text\": \"a</param")]),
            ("<function=sub><parameter=text>a", &[content("<function=sub><parameter=text>a")]),
            ("Use <parameter=a> in <function=f>.", &[content("Use <parameter=a> in <function=f>.")]),
        ],
    );
}
