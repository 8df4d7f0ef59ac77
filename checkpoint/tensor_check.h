// tensor_check.h - for the readers of safetensors and GGUF: checks of names and shapes, and the
// first error of several threads.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/common.h"

// A tensor that a file must have. name: for messages; key: its name in the file.
struct ExpectedTensor {
    std::string name, key;
    std::vector<int64_t> shape;
};
// Checks names and shapes before any tensor is read: every wanted tensor exists, and no other one,
// unless allowed(key) returns true. Exit 3. For messages: `location` is the file or directory, and
// `as` ends the message of a missing tensor.
Status check_tensors(const std::string& location, const std::vector<ExpectedTensor>& wanted,
                     const std::map<std::string, std::vector<int64_t>>& held, const char* as = "",
                     const std::function<bool(const std::string& key)>& allowed = nullptr);

// Error (exit 3) for a NaN or infinity in a tensor, which would make every generated text one
// repeated token.
Status not_finite(const std::string& location, const std::string& tensor);

// Keeps the error with the lowest (file, offset), so that a damaged file gives the same message
// whatever the threads' timing.
class FirstFailure {
  public:
    void add(const Status& s, int64_t file, int64_t at);
    const Status& status() const { return first; }

  private:
    Status first = {};
    std::pair<int64_t, int64_t> location = {};
};
