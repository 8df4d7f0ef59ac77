// tensor_check.h - shared by the readers of safetensors and GGUF: expected tensors, and failed
// reads of many threads.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/common.h"

// name: for messages; key: the tensor's name in the file.
struct ExpectedTensor {
    std::string name, key;
    std::vector<int64_t> shape;
};
// Checks names and shapes before any tensor is read: all wanted ones exist, no others unless
// allowed. Exit 3. location: the file or directory; as: ends the message of a missing tensor.
Status check_tensors(const std::string& location, const std::vector<ExpectedTensor>& wanted,
                     const std::map<std::string, std::vector<int64_t>>& held, const char* as = "",
                     const std::function<bool(const std::string& key)>& allowed = nullptr);

// Exit 3: a tensor holds NaN or infinity, which would make every generated text one repeated token.
Status not_finite(const std::string& location, const std::string& tensor);

// Keeps the failed read with the lowest (file, offset), so that equal damage gives equal messages
// for any thread timing.
class FirstFailure {
  public:
    void add(const Status& s, int64_t file, int64_t at);
    const Status& status() const { return first; }

  private:
    Status first = {};
    std::pair<int64_t, int64_t> location = {};
};
