//! Texts around names, parameters and values of calls in XML tags.
use super::tool_formats::{DSML_TAG, FUNCTION_TAG, INVOKE_TAG};

/// Texts of one form of XML tags.
#[derive(Debug)]
pub(super) struct Tags {
    /// Mark that the name of the function and `>` follow; empty if the name has no tag.
    pub(super) call: &'static str,
    /// Text before the name of a parameter.
    pub(super) key: &'static str,
    /// Text between the name and the value.
    pub(super) value: &'static str,
    /// Text after the value.
    pub(super) value_end: &'static str,
    /// Text after a value that is on separate lines. `None` if line breaks belong to the value.
    pub(super) line_value_end: Option<&'static str>,
    /// Text after the parameters.
    pub(super) end: &'static str,
}

/// Tags of Qwen3-Coder: `<function=f><parameter=a>1</parameter></function>`.
pub(super) static FUNCTION_TAGS: Tags = Tags {
    call: FUNCTION_TAG,
    key: "<parameter=",
    value: ">",
    value_end: "</parameter>",
    line_value_end: Some("\n</parameter>"),
    end: "</function>",
};

/// Tags of MiniMax-M2: `<invoke name="f"><parameter name="a">1</parameter></invoke>`.
pub(super) static INVOKE_TAGS: Tags = Tags {
    call: INVOKE_TAG,
    key: "<parameter name=",
    value: ">",
    value_end: "</parameter>",
    line_value_end: None,
    end: "</invoke>",
};

/// Tags of DeepSeek-V3.2: as those of MiniMax-M2, with a prefix and the attribute `string="true"` or `"false"`.
pub(super) static DSML_TAGS: Tags = Tags {
    call: DSML_TAG,
    key: "<｜DSML｜parameter name=",
    value: ">",
    value_end: "</｜DSML｜parameter>",
    line_value_end: None,
    end: "</｜DSML｜invoke>",
};

/// Tags of GLM-4.5, which follow the name: `f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`.
pub(super) static ARGUMENT_TAGS: Tags = Tags {
    call: "",
    key: "<arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    line_value_end: None,
    end: "</tool_call>",
};

/// End tag of a key in [`ARGUMENT_TAGS`].
pub(super) const KEY_END: &str = "</arg_key>";

/// Returns the tags of calls that begin with `mark`.
pub(super) fn of_mark(mark: &str) -> Option<&'static Tags> {
    [&FUNCTION_TAGS, &INVOKE_TAGS, &DSML_TAGS].into_iter().find(|tags| tags.call == mark)
}
