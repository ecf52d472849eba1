// SharedList: a list that doesn't change, of which copies are free: they share the elements.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace kvart {

template <class T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = const T*;

  SharedList() = default;
  SharedList(std::initializer_list<T> list) : SharedList(std::vector<T>(list)) {}
  explicit SharedList(std::vector<T> list)
      : list_(std::make_shared<const std::vector<T>>(std::move(list))) {}

  [[nodiscard]] size_t size() const { return list_ ? list_->size() : 0; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] const T* data() const { return list_ ? list_->data() : nullptr; }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size(); }
  const T& operator[](size_t index) const { return data()[index]; }

 private:
  std::shared_ptr<const std::vector<T>> list_;
};

}  // namespace kvart
