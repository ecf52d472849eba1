// Choice: from a row of logits to a token, and from tokens to text that can be shown.
#include "engine/choice.h"

#include <algorithm>

#include "engine/token_scores.h"

namespace kvart {

Choice::Choice(const ChoiceSource& source, std::vector<int32_t> prompt, int index)
    : options_(*source.options),
      model_ends_(options_.ignore_eos ? std::span<const int32_t>() : source.model_ends),
      index_(index),
      prompt_tokens_(prompt.size()),
      tokens_(std::move(prompt)),
      sampler_(&options_.sampling, options_.sampling.seed + static_cast<uint64_t>(index),
               source.buffers),
      stream_(source.model->text_stream(options_.show_special_tokens)),
      stops_(options_.stop) {
  // An answer goes on where the prompt ended: a space that begins it is no beginning of a text,
  // where some vocabularies have one that nobody wrote.
  for (const int32_t token : tokens_) {
    if (!stream_->push(token).empty()) break;
  }
}

ChoiceOutput Choice::next(std::span<const float> logits) {
  ChoiceOutput out;
  out.choice = index_;
  const bool may_end = sampled_ >= options_.min_tokens;
  SamplingContext context{tokens_, prompt_tokens_, {}};
  if (!may_end) context.banned = {model_ends_, options_.stop_token_ids};
  const int32_t token = sampler_.sample(logits, context);
  if (token < 0) {
    out.finish = FinishReason::error;
    return out;
  }
  sampled_ += 1;
  if (ends_answer(token, &out)) {
    hand_out_rest(&out);
    return out;
  }
  tokens_.push_back(token);
  Pending pending{token, {}, stops_.size(), 0};
  if (options_.logprobs >= 0) pending.score = score_token(logits, token, options_.logprobs);
  pending_.push_back(std::move(pending));
  add_text(stream_->push(token), &out);
  if (out.finish == FinishReason::none && sampled_ == options_.max_tokens) {
    out.finish = FinishReason::length;
    hand_out_rest(&out);
  } else if (out.finish == FinishReason::none) {
    hand_out(stops_.settled(), false, &out);
  }
  return out;
}

bool Choice::ends_answer(int32_t token, ChoiceOutput* out) const {
  const auto has = [token](std::span<const int32_t> ends) {
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  };
  const bool asked_for = has(options_.stop_token_ids);
  if (!asked_for && !has(model_ends_)) return false;
  out->finish = FinishReason::stop;
  if (asked_for) out->stop_token = token;
  return true;
}

// Text of the last pending token; a stop text that it completes ends the answer.
void Choice::add_text(const std::string& piece, ChoiceOutput* out) {
  text_ += piece;
  bool found = false;
  if (sampled_ > options_.min_tokens) {
    found = stops_.push(piece);
  } else {
    stops_.skip(piece);
  }
  if (!pending_.empty()) pending_.back().end = stops_.size();
  if (!found) return;
  out->finish = FinishReason::stop;
  out->stop_text = stops_.found();
  out->stop_token.reset();
  hand_out(stops_.found_at() + (options_.include_stop_text ? stops_.found().size() : 0), false,
           out);
  // Tokens of which a part is out.
  for (const Pending& pending : pending_) {
    if (pending.begin >= text_begin_) break;
    out->tokens.push_back(pending.token);
    if (options_.logprobs >= 0) out->scores.push_back(pending.score);
  }
  pending_.clear();
}

// At the end: an unfinished character may still complete a stop text.
void Choice::hand_out_rest(ChoiceOutput* out) {
  add_text(stream_->flush(), out);
  if (out->stop_text.empty()) hand_out(stops_.size(), true, out);
}

void Choice::hand_out(size_t text_end, bool all_tokens, ChoiceOutput* out) {
  const size_t bytes = text_end - text_begin_;
  out->text.append(text_, 0, bytes);
  text_.erase(0, bytes);
  text_begin_ = text_end;
  while (!pending_.empty() && (all_tokens || pending_.front().end <= text_end)) {
    out->tokens.push_back(pending_.front().token);
    if (options_.logprobs >= 0) out->scores.push_back(std::move(pending_.front().score));
    pending_.pop_front();
  }
}

}  // namespace kvart
