// SessionMemory: the scheduler's questions about memory, answered by a session.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "engine/scheduler.h"
#include "kvart/session.h"

namespace kvart {

class SessionMemory final : public SequenceMemory {
 public:
  explicit SessionMemory(Session& session) : session_(session) {}

  // tokens: all that are known, now and later; must live until forget().
  void know(EntryId entry, const std::vector<int32_t>* tokens, std::string salt);
  // Precondition: it holds no sequence.
  void forget(EntryId entry);
  // Whether the entry's sequence may begin with cached blocks. Default: yes.
  void use_prefix_cache(EntryId entry, bool use);
  // A known entry gets a copy of another's sequence. False: no memory.
  bool fork(EntryId parent, EntryId child);
  // Precondition: started.
  [[nodiscard]] SequenceId sequence(EntryId entry) const;

  std::optional<int64_t> start(EntryId entry, int64_t tokens, int64_t promised) override;
  bool reserve(EntryId entry, int64_t computed, int64_t count) override;
  void release(EntryId entry) override;

 private:
  struct Known {
    const std::vector<int32_t>* tokens = nullptr;
    std::string salt;
    bool prefix_cache = true;
    SequenceId sequence = -1;  // -1: none
  };
  Known& get(EntryId entry);

  Session& session_;
  std::unordered_map<EntryId, Known> known_;
};

}  // namespace kvart
