// Connection: one client; reads its requests one after the other and writes the answers. It keeps
// reading while it answers, so that it sees at once when the client is gone.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/dynamic_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/byte_count.h"
#include "server/hub.h"
#include "server/routes.h"

namespace kvart::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, tcp::socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  // Drops what it was doing; its generation is cancelled.
  void close();
  // There is room for more of its answer.
  void on_room();
  // Nothing of a request has come, or its answer is written.
  [[nodiscard]] bool is_idle() const {
    return (phase_ == Phase::idle || phase_ == Phase::lingering) && !writing_;
  }

 private:
  enum class Phase {
    idle,       // nothing of the next request is there
    head,       // a part of its header is
    body,       // the header is
    working,    // the request is; the answer is being prepared or written
    lingering,  // the answer is written, the client may still be sending: what comes is dropped
    closed,
  };
  // A body that grows as bytes come, instead of taking what the client announces.
  using Parser = http::request_parser<http::basic_dynamic_body<beast::flat_buffer>>;

  // What a job has made of a body.
  struct Prepared {
    std::optional<ApiError> fault;
    std::string answer;  // the body of the answer, where no tokens are generated
    ApiRequest request;
    std::vector<std::vector<int32_t>> prompts;
  };
  // Jobs of the pools. `self` goes back to the thread that answers with what was made: no other
  // may be the last to drop a connection.
  struct TextJob {
    std::shared_ptr<Connection> self;
    Action action;
    ByteCount count;  // of the body, until the job is done, whether the client is there or not
    beast::flat_buffer body;
    std::optional<Prepared> prepared;  // none where there was no memory for it
  };
  struct AnswerJob {
    std::shared_ptr<Connection> self;
    std::shared_ptr<Answer> answer;
    std::string (Answer::*text_of)();
    void (Connection::*on_made)(AnswerJob&);
    ByteCount count;                  // of the text, until it goes to be written
    std::optional<std::string> text;  // none where there was no memory for it
    bool no_room = false;
  };

  // A part of a handler. Where the system has no memory for it the client is told so, or the
  // connection ends.
  template <class Work>
  void attempt(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      hub_.service.note_lost("a request", error);
      on_no_memory();
    }
  }
  void on_no_memory() noexcept;

  // Reading: connection.cpp.
  void read();
  void read_ahead();
  void on_read(const boost::system::error_code& error, size_t count);
  void advance();
  bool feed_parser();  // false: no more can be parsed now
  void begin_request();
  bool count_body();
  void refuse_unreadable(const boost::system::error_code& error);
  void arm(std::chrono::milliseconds time);
  void disarm();
  void on_deadline();
  void enter_waiting();
  void leave_waiting();

  // Writing: connection.cpp.
  void write(std::string data);
  void write_some();
  void on_written(const boost::system::error_code& error, size_t count);
  void count_unwritten();
  void finish_response();
  void linger();

  // Requests: connection_requests.cpp.
  bool on_header();  // false: refused
  std::optional<ApiError> check_request();
  std::optional<ApiError> check_key(std::string_view authorization);
  void on_request();
  void start_job(Action action);
  static void run(const std::shared_ptr<TextJob>& job);
  static Prepared prepare(const Service& service, Action action, std::string_view body);
  void on_prepared(TextJob& job);
  void on_output();
  void make(std::shared_ptr<Answer> answer, std::string (Answer::*text_of)(),
            void (Connection::*on_made)(AnswerJob&));
  static void run(const std::shared_ptr<AnswerJob>& job);
  void on_made_events(AnswerJob& job);
  void on_made_body(AnswerJob& job);
  void wait_for_room();
  void on_events(std::string events);
  void write_events(std::string events, bool last);
  void end_stream(const ApiError& error);
  void respond(int status, std::string_view content_type, const std::string& body);
  void respond_error(const ApiError& error);
  void begin_stream();
  [[nodiscard]] bool keeps_alive() const;
  // A part of the request's answer is still to be made.
  [[nodiscard]] bool is_unanswered() const { return phase_ == Phase::working && !complete_; }

  Hub& hub_;
  tcp::socket socket_;
  net::steady_timer deadline_;
  uint64_t armed_ = 0;  // which wait of the timer counts
  Phase phase_ = Phase::idle;
  std::optional<std::list<Connection*>::iterator> waiting_place_;

  std::array<char, 8192> incoming_;
  std::string pending_;  // bytes that the parser hasn't seen
  bool reading_ = false;
  std::optional<Parser> parser_;
  ByteCount held_;  // of the body, or of what was made of it, until it goes to a job or is written
  std::atomic<bool> gone_ = false;  // closed, as a job sees it

  // Of the request.
  const Route* route_ = nullptr;
  size_t key_ = 0;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;
  std::string more_head_;                        // further header lines of the answer
  std::chrono::steady_clock::time_point asked_;  // all of it was there

  // Of the answer.
  std::shared_ptr<Answer> answer_;
  bool streams_ = false;  // the head of a stream is out
  bool polling_ = false;  // a job has it
  bool output_ready_ = false;
  bool complete_ = false;  // once what is being written is out, the answer is
  std::string out_;
  size_t sent_ = 0;
  std::string queue_;  // what follows out_
  bool writing_ = false;
  ByteCount unwritten_;  // of out_ and queue_
  bool wants_room_ = false;
};

}  // namespace kvart::server
