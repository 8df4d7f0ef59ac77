// corpus.h - documents of many files, in their order and in bounded memory; what is held out.
#pragma once
#include <memory>
#include <string>

#include "documents/reader.h"

class Corpus {
  public:
    // Opens every file once, so that missing files, and files that are neither text nor of another
    // known format, are reported at the start. Exit 3: names the file; 2: a part of stdin cannot be
    // held out.
    static Result<Corpus> open(CorpusConfig config);
    // Gets the next segment, about 1 MiB of text or one record; false at the end. Exit 3: a record,
    // or text without a safe cut, is longer than config.longest, or a file is damaged; 4: reading
    // fails.
    Result<bool> next(Segment& segment);
    // Replaces a raw record by the text in it, in any thread. Exit 3: names file and line; the
    // record may be left out. Other segments stay.
    Status json_text(Segment& segment) const { return record_text(segment, *config); }
    // Bytes of the files read so far, before decompression.
    int64_t bytes_read() const { return done + (reader ? reader->file_bytes() : 0); }
    int64_t bytes() const { return total; }    // bytes of all files; 0: unknown
    // Message that names the first text of invalid UTF-8 read so far, with a remedy; empty: none.
    std::string encoding_note() const;

  private:
    std::shared_ptr<const CorpusConfig> config;    // readers refer to it
    bool many = false;                             // over 100 files: whole texts held out
    size_t file = 0;                               // index of the next file to open
    ReaderPtr reader;                              // the open file's
    bool whole_held_out = false;                   // the open file is a text held out
    HoldOut held_out;
    int64_t done = 0, total = 0;
    std::string not_utf8;    // first text with invalid UTF-8
    int64_t not_utf8_files = 0;

    Status open_next();
    void close();
};
