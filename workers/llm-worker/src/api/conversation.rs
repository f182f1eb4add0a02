//! A conversation of any API, from its turns and options to the generated answer.
use std::sync::Arc;

use llm_engine::request::Sampling;
use serde_json::{Map, Value};
use worker_core::{ApiError, Client, WorkPermit, fields};

use super::generation::Generation;
use super::messages::{self, Tools};
use super::options::Options;
use super::output::Outputs;
use super::pictures::PictureSource;
use super::request::{Biases, CommonFields, SamplerFields, Strings, TokenLimit, ToolChoice};
use super::template_input::{Ending, TemplateInput};
use super::turns::Turns;
use crate::adapters::RequestedModel;
use crate::served::ServedModel;

fields! {
    /// Fields of chats that other APIs accept as extensions, with the same meaning.
    pub struct ExtensionFields => {
        /// Seed of the random numbers.
        seed: i64,
        /// Tokens that end the text.
        stop_token_ids: Vec<u32>,
        /// Number of tokens before which the text does not end.
        min_tokens: usize,
        /// Logit biases by token.
        logit_bias: Biases,
        /// If true, generation continues after an end-of-text token.
        ignore_eos: bool,
        /// Variables of the chat template.
        chat_template_kwargs: Map<String, Value>,
    }
}

/// Names of fields for errors.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    /// Field of the turns.
    pub turns: &'static str,
    /// Field of the answer's JSON schema.
    pub schema: &'static str,
}

/// A conversation with its options.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Model of the request.
    pub model: RequestedModel,
    /// Turns.
    pub turns: Turns,
    /// Pictures of the turns, in order.
    pub pictures: Vec<PictureSource>,
    /// If true, the model continues the assistant's text at the end instead of a new turn.
    pub continues: bool,
    /// Tools in the format of `/v1/chat/completions`.
    pub tools: Vec<Value>,
    /// Tools that may or must be called.
    pub choice: Option<ToolChoice>,
    /// Variables of the chat template. Those of `extensions` have precedence.
    pub variables: Map<String, Value>,
    /// If true, at most one tool call is returned.
    pub single_call: bool,
    /// JSON schema of the answer.
    pub schema: Option<Value>,
    /// Number of alternatives per token with log probabilities, if these are requested.
    pub logprobs: Option<usize>,
    /// Maximum number of tokens to generate; `None` for no limit. Values above the remaining context are reduced to
    /// it.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Sampler settings.
    pub sampler: SamplerFields,
    /// Further options.
    pub extensions: ExtensionFields,
}

/// An answer that is being generated.
pub struct Started {
    /// Its parts.
    pub outputs: Outputs,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Slot of the client.
    pub permit: WorkPermit,
}

impl Conversation {
    /// Returns the sampler settings, with the model's defaults.
    pub fn sampling(&self, served: &ServedModel) -> Sampling {
        self.sampler.clone().over(&served.sampling)
    }

    /// Returns the number of tokens of the prompt.
    ///
    /// # Errors
    /// Returns a 400 error if the tools are invalid or the template rejects the turns.
    pub async fn count(self, served: &Arc<ServedModel>, names: FieldNames) -> Result<usize, ApiError> {
        let tools = messages::tools(self.tools, self.choice)?.for_template;
        let mut variables = self.variables;
        variables.extend(self.extensions.chat_template_kwargs.unwrap_or_default());
        let input = template_input((self.turns, self.pictures), self.continues, tools, variables);
        Ok(input.prompt(served, served.context(), names.turns).await?.tokens.len())
    }

    /// Starts the answer.
    ///
    /// # Errors
    /// Returns an error that names the invalid field, or that of the engine.
    pub async fn start(
        mut self,
        served: &Arc<ServedModel>,
        client: &Client,
        names: FieldNames,
    ) -> Result<Started, ApiError> {
        self.variables.extend(self.extensions.chat_template_kwargs.take().unwrap_or_default());
        let options =
            options(self.max_tokens, self.stop, self.sampler, self.extensions, self.logprobs, served)?;
        let mut options = options.for_model(self.model);
        let Tools { callable, schema: call, for_template } = messages::tools(self.tools, self.choice)?;
        let constrained = if call.is_some() { "tools" } else { names.schema };
        match (self.schema, call) {
            (Some(_), Some(_)) => {
                let message = format!("cannot require a call together with `{}`", names.schema);
                return Err(ApiError::field("tool_choice", message));
            }
            (Some(schema), None) | (None, Some(schema)) => options.constrain(schema, names.schema)?,
            (None, None) => {}
        }
        let input = template_input((self.turns, self.pictures), self.continues, for_template, self.variables);
        let prompt = input.prompt(served, served.context(), names.turns).await?;
        let prompt_tokens = prompt.tokens.len();
        served.check_prompt(prompt_tokens, options.request.max_tokens, names.turns)?;
        options.limit_tokens(served.context() - prompt_tokens);
        let permit = client.acquire(1, names.turns)?;
        let parser = options.parser(served, callable, self.single_call, &prompt);
        options.request.pictures = prompt.pictures;
        let requests = options.requests(vec![prompt.tokens], client);
        let generation = Generation::start(served, requests, 1, parser, [names.turns, constrained]).await?;
        Ok(Started { outputs: Outputs::new(generation), prompt_tokens, permit })
    }
}

fn options(
    max_tokens: Option<usize>,
    stop: Vec<String>,
    sampler: SamplerFields,
    extensions: ExtensionFields,
    logprobs: Option<usize>,
    served: &ServedModel,
) -> Result<Options, ApiError> {
    let ExtensionFields { seed, stop_token_ids, min_tokens, logit_bias, ignore_eos, .. } = extensions;
    let common = CommonFields {
        max_tokens: max_tokens.map(TokenLimit::Tokens),
        stop: (!stop.is_empty()).then_some(Strings::Several(stop)),
        seed,
        stop_token_ids,
        min_tokens,
        logit_bias,
        ignore_eos,
        ..CommonFields::default()
    };
    let vocabulary = served.engine.capacity().vocabulary;
    Options::new(common, sampler, (vocabulary, &served.sampling), None, logprobs)
}

/// Returns the inputs of the template. If `continues`, the answer continues the assistant's text at the end.
fn template_input(
    (mut turns, pictures): (Turns, Vec<PictureSource>),
    continues: bool,
    tools: Option<Value>,
    variables: Map<String, Value>,
) -> TemplateInput {
    let ending = if continues && turns.has_beginning() { Ending::Open } else { Ending::Answer };
    TemplateInput { conversation: turns.into_value(), pictures, tools, variables, ending }
}
