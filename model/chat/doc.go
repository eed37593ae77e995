// Package chat turns the messages of a conversation into the prompt that a model
// was trained on. Model files carry a Jinja template for that
// (tokenizer.chat_template); a [Template] renders it the way Hugging Face's
// tokenizers do: blocks trimmed, bos_token, eos_token, messages and
// add_generation_prompt in scope, raise_exception and strftime_now callable, tools
// and documents none. Models without a template get [Plain].
//
// A template comes with the weights and is trusted like them, but mistakes in one
// must not hold up a node: steps, depth, time and size of a rendering are bounded
// (limits.go), nothing is read from outside, and a template that goes wrong is an
// error. One expression is not bounded in memory: a template made to do harm can
// still waste it.
//
// Date and time are those of the node that renders, in UTC. The rendered prompt is
// what a session is made of, so a failover does not render again.
package chat
