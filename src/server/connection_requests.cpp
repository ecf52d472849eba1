// What a connection does with a request.
#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "model/file/json_text.h"
#include "server/connection.h"
#include "server/framing.h"
#include "server/guard.h"
#include "server/http_head.h"
#include "server/prompt.h"
#include "server/status_page.h"

namespace kvart::server {

namespace {

constexpr std::string_view json_type = "application/json";
constexpr std::string_view no_type;

std::string_view view(const beast::string_view& text) {
  return {text.data(), text.size()};
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

ApiError no_room() {
  return {503, "too many large answers wait for their clients to take them; try again later"};
}

}  // namespace

// Of an answer: whether another request may follow.
bool Connection::keeps_alive() const {
  const bool read = parser_ && parser_->is_done();
  return keep_alive_ && read && !hub_.service.stopping;
}

std::optional<ApiError> Connection::check_key(std::string_view authorization) {
  const ServerOptions& options = hub_.service.options();
  key_ = 0;
  if (options.api_keys.empty()) return std::nullopt;
  const auto found = find_key(options.api_keys, authorization);
  if (found) key_ = *found;
  if (found || (route_ != nullptr && route_->open)) return std::nullopt;
  more_head_ += "WWW-Authenticate: Bearer\r\n";
  return ApiError{401, "a right API key is needed: Authorization: Bearer KEY"};
}

// Everything that the header alone decides.
std::optional<ApiError> Connection::check_request() {
  const auto& message = parser_->get();
  const ServerOptions& options = hub_.service.options();
  const std::string_view host = view(message[http::field::host]);
  const std::string_view origin = view(message[http::field::origin]);
  const auto path = path_of(view(message.target()));
  if (path) route_ = find_route(*path);
  if (message.count(http::field::host) > 1) return ApiError{400, "there are several Host headers"};
  if (!http10_ && message.count(http::field::host) == 0) {
    return ApiError{400, "there is no Host header"};
  }
  if (hub_.loopback_only && !names_this_machine(host, options.host)) {
    return ApiError{403, "the Host header doesn't name this machine"};
  }
  const auto allowed = allowed_origin(options.cors_origins, origin);
  if (allowed) {
    more_head_ += fmt::format("Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n", *allowed);
  }
  const http::verb method = message.method();
  const bool preflight = method == http::verb::options && allowed;
  if (!preflight) {
    if (auto fault = check_key(view(message[http::field::authorization]))) return fault;
  }
  if (route_ == nullptr) return ApiError{404, "there is nothing at this path"};
  if (preflight) return std::nullopt;
  const bool get = method == http::verb::get || method == http::verb::head;
  if (!(get && route_->get) && !(method == http::verb::post && route_->post)) {
    more_head_ += fmt::format("Allow: {}\r\n", allowed_methods(*route_));
    return ApiError{405, "this path takes " + allowed_methods(*route_)};
  }
  if (!get && !origin.empty() && !allowed && !is_own_origin(origin, host)) {
    return ApiError{403, "pages of this origin may not ask; see --cors-origin"};
  }
  if (hub_.service.stopping) return ApiError{503, "the server is shutting down"};
  return std::nullopt;
}

bool Connection::on_header() {
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive();
  http10_ = message.version() < 11;
  head_only_ = message.method() == http::verb::head;
  if (const auto fault = check_framing(message, message.version())) {
    keep_alive_ = false;  // nobody knows where the next request begins
    respond_error(*fault);
    return false;
  }
  if (const auto fault = check_request()) {
    respond_error(*fault);
    return false;
  }
  const bool expects = same_ignoring_case(view(message[http::field::expect]), "100-continue");
  if (expects && !http10_ && !parser_->is_done()) write("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::on_request() {
  Service& service = hub_.service;
  const auto& message = parser_->get();
  asked_ = std::chrono::steady_clock::now();
  if (message.method() == http::verb::options) {
    const std::string_view wanted = view(message[http::field::access_control_request_headers]);
    more_head_ += fmt::format(
        "Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: {}\r\n"
        "Access-Control-Max-Age: 600\r\n",
        allowed_headers(wanted));
    return respond(204, no_type, "");
  }
  switch (route_->action) {
    case Action::page:
      more_head_ +=
          "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src "
          "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri "
          "'none'; form-action 'none'\r\n";
      return respond(200, "text/html; charset=utf-8", std::string(status_page()));
    case Action::health:
      return respond(200, no_type, "");
    case Action::version:
      return respond(200, json_type, service.version_body());
    case Action::models:
      return respond(200, json_type, service.models_body());
    case Action::metrics:
      return respond(200, "text/plain; version=0.0.4; charset=utf-8", service.metrics_body());
    case Action::status:
      return respond(200, json_type, service.status_body());
    case Action::tokenizer_info:
      return respond(200, json_type, service.tokenizer_info_body());
    case Action::reset_prefix_cache:
      if (service.options().api_keys.size() > 1 && !service.options().allow_reset) {
        return respond_error({403,
                              "with several keys none may forget what the others have "
                              "cached; see --allow-reset"});
      }
      service.engine().reset_prefix_cache();
      return respond(200, no_type, "");
    case Action::model: {
      const std::string_view path = *path_of(view(message.target()));
      const std::string body =
          service.model_body(std::string(path.substr(route_->path.size() - 1)));
      if (body.empty()) return respond_error({404, "there is no model of that name", "model"});
      return respond(200, json_type, body);
    }
    case Action::completion:
    case Action::chat:
    case Action::tokenize:
    case Action::detokenize:
      return start_job(route_->action);
  }
}

void Connection::start_job(Action action) {
  if (hub_.text_jobs >= hub_.service.options().max_text_jobs) {
    return respond_error({503, "too many requests wait to be read; try again later"});
  }
  const auto job = std::make_shared<TextJob>(
      TextJob{shared_from_this(), action, std::move(held_), std::move(parser_->get().body()), {}});
  net::post(hub_.text, [job] { run(job); });
  ++hub_.text_jobs;  // the job may be done by now
}

void Connection::run(const std::shared_ptr<TextJob>& job) {
  Hub& hub = job->self->hub_;
  try {
    const auto text = job->body.cdata();
    const std::string_view body(static_cast<const char*>(text.data()), text.size());
    if (!job->self->gone_) job->prepared = prepare(hub.service, job->action, body);
  } catch (const std::exception& error) {
    hub.service.note_lost("a request", error);
  }
  job->body = {};
  job->count.set(0);
  --hub.text_jobs;
  hub.post_back([job] {
    const auto self = std::move(job->self);
    self->attempt([&] { self->on_prepared(*job); });
  });
}

Connection::Prepared Connection::prepare(const Service& service, Action action,
                                         std::string_view body) {
  Prepared out;
  EmptiedJson<Json> tree;
  Json& json = tree.value;
  out.fault = parse_body(body, &json);
  if (out.fault) return out;
  const Model& model = service.model();
  const ApiLimits& limits = service.limits();
  if (action == Action::tokenize) {
    out.fault = tokenize_answer(model, limits, json, &out.answer);
  } else if (action == Action::detokenize) {
    out.fault = detokenize_answer(model, limits, json, &out.answer);
  } else {
    out.fault = action == Action::chat ? parse_chat(json, limits, &out.request)
                                       : parse_completion(json, limits, &out.request);
    if (!out.fault) {
      out.fault = make_prompts(model, limits.context_tokens, out.request, &out.prompts);
    }
    if (!out.fault) out.fault = check_repeated(out.request, out.prompts);
    forget_prompts(&out.request);
  }
  return out;
}

void Connection::on_prepared(TextJob& job) {
  if (!is_unanswered()) return;
  if (!job.prepared) return on_no_memory();
  Prepared& prepared = *job.prepared;
  Service& service = hub_.service;
  service.note_unknown(std::exchange(prepared.request.unknown, {}));
  if (prepared.fault) return respond_error(*prepared.fault);
  if (!prepared.answer.empty()) {
    held_.set(prepared.answer.size());
    return respond(200, json_type, prepared.answer);
  }
  if (service.stopping) return respond_error({503, "the server is shutting down"});
  ApiRequest& request = prepared.request;
  if (!request.seed) request.seed = service.random_seed();
  const std::string salt = service.salt(key_, request.cache_salt);
  request.timeout = service.timeout(request);
  AnswerHead head = service.new_head(request, asked_);
  answer_ = std::make_shared<Answer>(service.model(), std::move(request), std::move(head));
  // From the engine's thread.
  const auto notify = [weak = weak_from_this(), io = hub_.io] {
    net::post(*io, [weak] {
      const auto self = weak.lock();
      if (self) self->attempt([&] { self->on_output(); });
    });
  };
  if (const auto fault =
          answer_->submit(service.engine(), std::move(prepared.prompts), salt, notify)) {
    answer_.reset();
    return respond_error(*fault);
  }
  if (answer_->request().stream) begin_stream();
}

void Connection::on_output() {
  if (!is_unanswered() || !answer_) return;
  const bool stream = answer_->request().stream;
  // What is new waits in the engine, and pauses it, until the client has taken what is here.
  if (stream && (writing_ || polling_)) {
    output_ready_ = true;
    return;
  }
  output_ready_ = false;
  if (stream && answer_->is_long()) {
    make(answer_, &Answer::poll, &Connection::on_made_events);
    polling_ = true;
    return;
  }
  if (stream && !hub_.service.has_room()) return wait_for_room();
  std::string events = answer_->poll();
  if (stream) return on_events(std::move(events));
  if (!answer_->finished()) return;
  if (answer_->failed()) return respond_error(*answer_->failed());
  if (answer_->is_long()) return make(std::move(answer_), &Answer::body, &Connection::on_made_body);
  if (!hub_.service.has_room()) return respond_error(no_room());
  respond(200, json_type, answer_->body());
}

void Connection::on_events(std::string events) {
  // After an error the stream just ends; the connection too, so that nobody waits for more.
  if (answer_->failed()) keep_alive_ = false;
  // The next piece is made when this one is out.
  if (answer_->has_more()) output_ready_ = true;
  write_events(std::move(events), answer_->finished());
}

void Connection::write_events(std::string events, bool last) {
  std::string data;
  if (!events.empty()) data = http10_ ? std::move(events) : chunk_text(events);
  if (last && !http10_) data += chunk_text("");
  const bool writes = !data.empty();
  if (writes) write(std::move(data));
  complete_ = last;
  if (writes) return;
  if (complete_) return finish_response();
  if (output_ready_) on_output();
}

void Connection::end_stream(const ApiError& error) {
  keep_alive_ = false;
  write_events(event_text(error_body(error)), true);
}

// Long events and bodies are written where they hold up nobody. An answer that stays here as well
// is the job's alone until that is done.
void Connection::make(std::shared_ptr<Answer> answer, std::string (Answer::*text_of)(),
                      void (Connection::*on_made)(AnswerJob&)) {
  const auto job = std::make_shared<AnswerJob>(AnswerJob{shared_from_this(),
                                                         std::move(answer),
                                                         text_of,
                                                         on_made,
                                                         ByteCount(hub_.service.answers_bytes),
                                                         {}});
  net::post(hub_.answers, [job] { run(job); });
}

void Connection::run(const std::shared_ptr<AnswerJob>& job) {
  Hub& hub = job->self->hub_;
  job->no_room = !hub.service.has_room();
  try {
    if (!job->self->gone_ && !job->no_room) {
      job->text = ((*job->answer).*(job->text_of))();
      job->count.set(job->text->size());
    }
  } catch (const std::exception& error) {
    hub.service.note_lost("an answer", error);
  }
  job->answer.reset();
  hub.post_back([job] {
    const auto self = std::move(job->self);
    self->attempt([&] { ((*self).*(job->on_made))(*job); });
  });
}

void Connection::on_made_events(AnswerJob& job) {
  polling_ = false;
  job.count.set(0);
  if (!is_unanswered()) return hub_.offer_room();
  if (job.no_room) return wait_for_room();
  if (!job.text) return on_no_memory();
  on_events(std::move(*job.text));
  hub_.offer_room();
}

void Connection::on_made_body(AnswerJob& job) {
  job.count.set(0);
  if (!is_unanswered()) return hub_.offer_room();
  if (job.no_room) return respond_error(no_room());
  if (!job.text) return on_no_memory();
  respond(200, json_type, *job.text);
}

// Until then what is new waits in the engine, as for a client that takes nothing. Nothing of this
// connection is being written meanwhile, so those that wait don't keep each other waiting.
void Connection::wait_for_room() {
  if (!wants_room_) hub_.wanting_room.push_back(weak_from_this());
  wants_room_ = true;
  hub_.offer_room();  // there may be some again
}

void Connection::on_room() {
  wants_room_ = false;
  attempt([this] { on_output(); });
}

void Connection::begin_stream() {
  hub_.service.count(route_->path, 200);
  if (http10_) keep_alive_ = false;
  ResponseHead head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.chunked = !http10_;
  head.keep_alive = keep_alive_ = keeps_alive();
  head.more = more_head_;
  write(head_text(head));
  streams_ = true;
}

void Connection::respond(int status, std::string_view content_type, const std::string& body) {
  hub_.service.count(route_ != nullptr ? route_->path : "other", status);
  leave_waiting();
  phase_ = Phase::working;
  ResponseHead head;
  head.status = status;
  head.content_type = content_type;
  if (status != 204) head.content_bytes = body.size();
  head.keep_alive = keep_alive_ = keeps_alive();
  head.more = more_head_;
  std::string data = head_text(head);
  if (!head_only_) data += body;
  write(std::move(data));
  complete_ = true;
}

void Connection::respond_error(const ApiError& error) {
  if (error.status == 503) more_head_ += "Retry-After: 1\r\n";
  // OpenAI's clients would ask again, and take the time that they have limited several times.
  if (error.status == 504) more_head_ += "X-Should-Retry: false\r\n";
  respond(error.status, json_type, error_body(error));
}

}  // namespace kvart::server
