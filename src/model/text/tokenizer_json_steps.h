// The steps of a tokenizer.json around its model.
#pragma once

#include <string>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_json_field.h"
#include "model/text/tokenizer_pipeline.h"

namespace kvart::text {

// A null field is no step.
Status read_normalizer(const JsonField& field, std::vector<NormalizerStep>& out);
Status read_pre_tokenizer(const JsonField& field, std::vector<PreTokenizerStep>& out);
Status read_decoder(const JsonField& field, DecoderOptions& out);

// The tokens that a post-processor puts before and after a text: at most one each, else refused.
struct Frame {
  std::vector<int64_t> before, after;
};
Status read_post_processor(const JsonField& field, Frame& out);

}  // namespace kvart::text
