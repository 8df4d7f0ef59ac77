// tensor_check.h - what the readers of safetensors and GGUF share: the tensors that a model wants, and failed reads of
// many threads.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/common.h"

// name: for messages; key: what the file's tensor is found by.
struct ExpectedTensor {
    std::string name, key;
    std::vector<int64_t> shape;
};
// Every wanted tensor is held in its shape, and nothing else but what may be there; before any of them is touched.
// Exit 3. place: the file or directory; as: ends the message of one that is not found.
Status check_tensors(const std::string& location, const std::vector<ExpectedTensor>& wanted,
                     const std::map<std::string, std::vector<int64_t>>& held, const char* as = "",
                     const std::function<bool(const std::string& key)>& allowed = nullptr);

// Exit 3: a tensor that holds NaN or infinity. Every text of such a model is one token over and over.
Status not_finite(const std::string& location, const std::string& tensor);

// The failed read with the lowest place (file, offset): the same damage gives the same message, whichever thread fails
// first.
class FirstFailure {
  public:
    void add(const Status& s, int64_t file, int64_t at);
    const Status& status() const { return first; }

  private:
    Status first = {};
    std::pair<int64_t, int64_t> location = {};
};
