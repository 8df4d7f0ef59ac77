// write_model.h - writes a model in memory to a directory. Include it after the project's headers.
#pragma once
#include "checkpoint/checkpoint.h"
#include "test.h"

// Writes the model as a Hugging Face directory and returns its path.
inline std::string write_model(const Model& g, const Tokenizer& tokenizer) {
    const std::string dir = temporary_directory();
    const std::vector<TensorSource> weights = checkpoint_tensors(g, {weights_state(g)});
    std::string file;
    REQUIRE(safetensors_write(weights, [&](const void* data, int64_t bytes) {
                file.append(static_cast<const char*>(data), size_t(bytes));
                return Status{};
            }).ok());
    write_file(dir + "/model.safetensors", file);
    write_file(dir + "/config.json", config_json(g.c, {tokenizer.end_of_text()}));
    write_file(dir + "/tokenizer.json", tokenizer.to_json());
    return dir;
}
