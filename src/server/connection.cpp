// Bytes in and out of a connection, and its time limits.
#include "server/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace kvart::server {

namespace {

constexpr size_t max_pipelined_bytes = size_t{64} << 10;
constexpr int send_buffer_bytes = 64 << 10;
constexpr std::chrono::milliseconds linger_time{2000};

}  // namespace

bool Hub::evict() {
  if (waiting.empty()) return false;
  const auto oldest = connections.find(waiting.front());
  const auto connection = oldest->second.lock();
  if (!connection) return false;
  connection->close();
  return true;
}

void Hub::close_all() {
  const auto all = connections;
  for (const auto& [unused, weak] : all) {
    if (const auto connection = weak.lock()) connection->close();
  }
}

void Hub::offer_room() noexcept {
  if (wanting_room.empty() || !service.has_room()) return;
  ptrdiff_t told = 0;
  try {
    for (const auto& weak : wanting_room) {
      net::post(*io, [weak] {
        if (const auto connection = weak.lock()) connection->on_room();
      });
      ++told;
    }
  } catch (const std::exception& error) {  // the others hear of it when more is written
    service.note_lost("news of room for answers", error);
  }
  wanting_room.erase(wanting_room.begin(), wanting_room.begin() + told);
}

Connection::Connection(Hub& hub, tcp::socket socket)
    : hub_(hub),
      socket_(std::move(socket)),
      deadline_(*hub.io),
      held_(hub.service.bodies_bytes),
      unwritten_(hub.service.answers_bytes) {}

Connection::~Connection() {
  close();
}

void Connection::on_no_memory() noexcept {
  keep_alive_ = false;
  answer_.reset();
  const bool asks = phase_ == Phase::head || phase_ == Phase::body || is_unanswered();
  // What comes next can't be understood without the bytes that are not on their way.
  const bool cut = !writing_ && sent_ < out_.size();
  if (!asks || cut) return close();
  try {
    const ApiError error{503, "there is no memory for this request now"};
    if (streams_) return end_stream(error);
    respond_error(error);
  } catch (const std::exception&) {
    close();
  }
}

void Connection::start() {
  boost::system::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  // The system would take megabytes of a stream that nobody reads.
  socket_.set_option(net::socket_base::send_buffer_size(send_buffer_bytes), ignored);
  hub_.connections.emplace(this, weak_from_this());
  ++hub_.service.connections;
  enter_waiting();
  arm(hub_.service.options().header_timeout);
  read();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  gone_ = true;
  leave_waiting();
  held_.set(0);
  // The memory itself is held until the system has given up the write.
  unwritten_.set(0);
  hub_.offer_room();
  if (hub_.connections.erase(this) > 0) --hub_.service.connections;
  answer_.reset();
  disarm();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void Connection::enter_waiting() {
  waiting_place_ = hub_.waiting.insert(hub_.waiting.end(), this);
}

void Connection::leave_waiting() {
  if (waiting_place_) hub_.waiting.erase(*waiting_place_);
  waiting_place_.reset();
}

void Connection::arm(std::chrono::milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([weak = weak_from_this(), wait = ++armed_](const auto& error) {
    const auto self = weak.lock();
    if (error || !self || self->armed_ != wait) return;
    self->attempt([&] { self->on_deadline(); });
  });
}

void Connection::disarm() {
  ++armed_;
  deadline_.cancel();
}

void Connection::on_deadline() {
  const bool partial = phase_ == Phase::head || phase_ == Phase::body;
  if (!partial || writing_) return close();
  keep_alive_ = false;
  respond_error({408, "the request didn't come in time"});
}

void Connection::read() {
  if (reading_ || phase_ == Phase::closed) return;
  socket_.async_read_some(net::buffer(incoming_),
                          [self = shared_from_this()](const auto& error, size_t count) {
                            self->reading_ = false;
                            self->attempt([&] { self->on_read(error, count); });
                          });
  reading_ = true;
}

void Connection::on_read(const boost::system::error_code& error, size_t count) {
  if (phase_ == Phase::closed) return;
  // A client that sends no more may still wait for the rest of its answer, once all of it is there.
  if (error == net::error::eof && complete_) {
    keep_alive_ = false;
    return;
  }
  if (error) return close();
  if (phase_ == Phase::lingering) return read();
  pending_.append(incoming_.data(), count);
  advance();
  read_ahead();
}

// Beyond that the client must wait for its answers.
void Connection::read_ahead() {
  if (pending_.size() < max_pipelined_bytes) read();
}

void Connection::begin_request() {
  const ServerOptions& options = hub_.service.options();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser_->body_limit(options.max_body_bytes);
  parser_->eager(false);  // the header is looked at first
  phase_ = Phase::head;
  route_ = nullptr;
  keep_alive_ = true;
  http10_ = head_only_ = false;
  more_head_.clear();
  arm(options.header_timeout);
}

void Connection::advance() {
  while (phase_ == Phase::idle || phase_ == Phase::head || phase_ == Phase::body) {
    if (phase_ == Phase::idle) {
      // An empty line before a request is the end of an older one's body.
      pending_.erase(0, std::min(pending_.find_first_not_of("\r\n"), pending_.size()));
    }
    if (pending_.empty()) return;
    if (phase_ == Phase::idle) begin_request();
    if (!feed_parser()) return;
  }
}

bool Connection::feed_parser() {
  boost::system::error_code error;
  const size_t used = parser_->put(net::buffer(pending_), error);
  pending_.erase(0, used);
  const bool more = error == http::error::need_more;
  if (error && !more) {
    refuse_unreadable(error);
    return false;
  }
  if (!count_body()) return false;
  const bool header = phase_ == Phase::head && parser_->is_header_done();
  if (header) {
    phase_ = Phase::body;
    if (!on_header()) return false;
    parser_->eager(true);
    arm(hub_.service.options().body_timeout);
  }
  if (parser_->is_done()) {
    disarm();
    leave_waiting();
    phase_ = Phase::working;
    on_request();
    return false;
  }
  return header || (used > 0 && !more);
}

bool Connection::count_body() {
  if (!parser_->is_header_done()) return true;
  held_.set(parser_->get().body().capacity());
  const Service& service = hub_.service;
  if (service.bodies_bytes <= service.options().max_bodies_bytes) return true;
  keep_alive_ = false;
  respond_error({503, "too many large requests are being read; try again later"});
  return false;
}

void Connection::refuse_unreadable(const boost::system::error_code& error) {
  const ServerOptions& options = hub_.service.options();
  keep_alive_ = false;
  if (error == http::error::body_limit) {
    return respond_error(
        {413, fmt::format("the body has more than {} bytes", options.max_body_bytes)});
  }
  if (error == http::error::header_limit) {
    return respond_error(
        {431, fmt::format("the header has more than {} bytes", options.max_header_bytes)});
  }
  respond_error({400, "this isn't HTTP: " + error.message()});
}

void Connection::write(std::string data) {
  if (phase_ == Phase::closed) return;
  if (writing_) {
    queue_ += data;
    return count_unwritten();
  }
  out_ = std::move(data);
  sent_ = 0;
  count_unwritten();
  write_some();
}

void Connection::write_some() {
  arm(hub_.service.options().write_timeout);
  socket_.async_write_some(net::buffer(out_.data() + sent_, out_.size() - sent_),
                           [self = shared_from_this()](const auto& error, size_t count) {
                             self->writing_ = false;
                             self->attempt([&] { self->on_written(error, count); });
                           });
  writing_ = true;
}

void Connection::on_written(const boost::system::error_code& error, size_t count) {
  if (phase_ == Phase::closed) return;
  if (error) return close();
  sent_ += count;
  if (sent_ == out_.size() && !queue_.empty()) {
    std::string().swap(out_);
    out_.swap(queue_);
    sent_ = 0;
    count_unwritten();
  }
  if (sent_ < out_.size()) return write_some();
  sent_ = 0;
  std::string().swap(out_);  // clear() would keep the memory as long as the connection is open
  count_unwritten();
  disarm();
  if (complete_) return finish_response();
  // "Continue" is out: now for the body.
  if (phase_ == Phase::body) return arm(hub_.service.options().body_timeout);
  if (output_ready_) on_output();
}

void Connection::count_unwritten() {
  unwritten_.set(out_.size() + queue_.size());
  hub_.offer_room();
}

void Connection::finish_response() {
  complete_ = false;
  output_ready_ = false;
  streams_ = false;
  answer_.reset();
  parser_.reset();
  held_.set(0);
  if (!keep_alive_) return linger();  // as the head has said
  phase_ = Phase::idle;
  enter_waiting();
  arm(hub_.service.options().idle_timeout);
  advance();
  read_ahead();
}

// To close with bytes unread would make the system throw away what was written.
void Connection::linger() {
  phase_ = Phase::lingering;
  leave_waiting();
  pending_.clear();
  boost::system::error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  arm(linger_time);
  read();
}

}  // namespace kvart::server
