// Parquet through Arrow's reader, one batch of rows at a time.
//
// Columns are streamed page by page (buffered streams, no pre-buffering), so that a row group of gigabytes
// needs no more memory than a small one. All that Arrow allocates for a file comes from one capped pool:
// sizes in a corrupt footer or page header meet the cap, not the machine. What the metadata promises is
// checked against what was read. A thread decodes a few batches ahead of the rows that are looked at, which
// also keeps a store's answers coming. Values are made later, by whoever asks for the rows.
#include <arrow/array/array_nested.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/util/key_value_metadata.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include "arrow_plugin/column_values.h"
#include "arrow_plugin/plugin.h"
#include "arrow_plugin/status.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "data/ahead.h"

namespace deltatune {
namespace {

constexpr int64_t memory_cap = int64_t{512} << 20;      // of one open file
constexpr int64_t buffers_of_file = int64_t{64} << 20;  // shared by the streams of all columns
constexpr int64_t bytes_of_batch = int64_t{8} << 20;
constexpr int64_t most_rows_of_batch = 1024;
constexpr size_t batches_ahead = 3;
constexpr int deepest = 64;  // levels of nesting
constexpr const char* get_again = "copy or download the file again, and compare its checksum";

// Our bytes as Arrow wants them. An Error is kept and thrown again when Arrow has unwound.
class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(RandomAccess& file) : file_(file) {}
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t position) override {
    if (position < 0) return arrow::Status::Invalid("seek before the file");
    at_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> GetSize() override { return static_cast<int64_t>(file_.size()); }
  using arrow::io::RandomAccessFile::ReadAt;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t count, void* out) override {
    if (position < 0 || count < 0) return arrow::Status::Invalid("negative place in the file");
    try {
      const std::span<char> to(static_cast<char*>(out), static_cast<size_t>(count));
      return static_cast<int64_t>(file_.read_at(static_cast<uint64_t>(position), to));
    } catch (...) {
      failure_ = std::current_exception();
      return arrow::Status::IOError("cannot read");
    }
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t count) override {
    const auto size = static_cast<int64_t>(file_.size());
    if (position < 0 || count < 0 || position > size) return arrow::Status::Invalid("place outside the file");
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(std::min(count, size - position)));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, buffer->size(), buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, count, out));
    at_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, count));
    at_ += buffer->size();
    return buffer;
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  RandomAccess& file_;
  int64_t at_ = 0;
  bool closed_ = false;
  std::exception_ptr failure_;
};

// A record batch whose rows become values when they are asked for.
class ArrowRows final : public RowBatch {
 public:
  explicit ArrowRows(const arrow::RecordBatch& batch) {
    const auto& schema = *batch.schema();
    for (int c = 0; c < batch.num_columns(); ++c) {
      const std::string& name = schema.field(c)->name();
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
        throw Error(ErrorKind::data, format("two columns are called {}", json::quote(name)), "",
                    "give each column a name of its own");
      }
      names_.push_back(name);
      columns_.push_back(make_column(batch.column(c), name));
    }
  }
  json::Value row(int64_t index) const override {
    int64_t budget = most_values_of_a_row;
    json::Object out;
    out.reserve(names_.size());
    for (size_t c = 0; c < names_.size(); ++c) {
      if (!columns_[c]) continue;
      json::Value value = columns_[c]->value(index, budget);
      if (!value.is_null()) out.emplace_back(names_[c], std::move(value));
    }
    return out;
  }
  // Columns whose type has no JSON form.
  std::vector<std::string> left_out() const {
    std::vector<std::string> out;
    for (size_t c = 0; c < names_.size(); ++c) {
      if (!columns_[c]) out.push_back(names_[c]);
    }
    return out;
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Column>> columns_;
};

// One file, read front to back.
class ParquetRows {
 public:
  ParquetRows(const std::shared_ptr<ArrowFile>& file, const std::string& name)
      : name_(name), inner_pool_(arrow::MemoryPool::CreateDefault()), pool_(inner_pool_.get(), memory_cap) {
    parquet::ReaderProperties properties(&pool_);
    properties.enable_buffered_stream();
    properties.set_page_checksum_verification(true);
    properties.set_schema_depth_limit(deepest);
    properties.set_thrift_string_size_limit(64 << 20);
    properties.set_thrift_container_size_limit(1 << 20);
    auto probe = parquet::ParquetFileReader::Open(file, properties);
    const auto metadata = probe->metadata();
    if (metadata->num_columns() == 0) fail("the file has no columns", name_);
    properties.set_buffer_size(
        std::clamp(buffers_of_file / metadata->num_columns(), int64_t{16} << 10, int64_t{1} << 20));
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_arrow_extensions_enabled(false);
    auto opened = parquet::ParquetFileReader::Open(file, properties, metadata);
    reader_ = value_or_throw(parquet::arrow::FileReader::Make(&pool_, std::move(opened), arrow_properties),
                             name_, get_again);
  }

  void visit(const VisitRows& visit, const BlockSize& block) {
    most_rows_ = std::min<int64_t>(most_rows_of_batch, static_cast<int64_t>(block.rows));
    bool any = false;
    Ahead<Decoded> decoded([this] { return next_batch(); }, batches_ahead);
    while (const std::optional<Decoded> next = decoded.next()) {
      const ArrowRows rows(*next->batch);
      report(rows.left_out());
      std::vector<RawRow> raw(static_cast<size_t>(next->batch->num_rows()));
      for (size_t i = 0; i < raw.size(); ++i) {
        raw[i].batch = &rows;
        raw[i].index = static_cast<int64_t>(i);
        raw[i].number = next->rows_before + raw[i].index + 1;
      }
      any = any || !raw.empty();
      if (!raw.empty() && !visit(raw)) return;
    }
    if (!any) {
      throw Error(ErrorKind::data, "the file has no rows", name_, "remove it from the dataset, or fill it");
    }
  }

 private:
  struct Decoded {
    std::shared_ptr<arrow::RecordBatch> batch;
    int64_t rows_before = 0;
  };

  [[noreturn]] static void fail(const std::string& what, const std::string& where) {
    throw Error(ErrorKind::data, what, where, get_again);
  }
  std::string place(int group) const { return format("{}, row group {}", name_, group); }

  // On the decoding thread, as is what it calls.
  std::optional<Decoded> next_batch() {
    for (;;) {
      if (!batches_ && !open_group()) return std::nullopt;
      Decoded out;
      out.rows_before = before_ + read_;
      check_status(batches_->ReadNext(&out.batch), place(group_), get_again);
      if (out.batch) {
        check_status(out.batch->Validate(), place(group_), get_again);
        read_ += out.batch->num_rows();
        return out;
      }
      if (read_ != promised_) {
        fail(format("the file is corrupt: {} rows where its metadata says {}", read_, promised_),
             place(group_));
      }
      batches_.reset();
    }
  }

  // The next row group with rows; false when there is none.
  bool open_group() {
    before_ += read_;
    read_ = 0;
    const auto metadata = reader_->parquet_reader()->metadata();
    for (++group_; group_ < metadata->num_row_groups(); ++group_) {
      const auto group = metadata->RowGroup(group_);
      promised_ = group->num_rows();
      if (promised_ < 0) fail("the file is corrupt: a negative number of rows", place(group_));
      if (promised_ == 0) continue;
      const int64_t bytes_of_row = std::max<int64_t>(group->total_byte_size(), 0) / promised_ + 1;
      reader_->set_batch_size(std::clamp<int64_t>(bytes_of_batch / bytes_of_row, 1, most_rows_));
      batches_ = value_or_throw(reader_->GetRecordBatchReader({group_}), place(group_), get_again);
      return true;
    }
    return false;
  }

  void report(const std::vector<std::string>& left_out) {
    if (reported_) return;
    reported_ = true;
    for (const std::string& column : left_out) {
      log::warn("{}: column {} is of a type without a JSON form; it is left out", name_, json::quote(column));
    }
  }

  std::string name_;
  bool reported_ = false;
  std::unique_ptr<arrow::MemoryPool> inner_pool_;
  arrow::CappedMemoryPool pool_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  int64_t most_rows_ = most_rows_of_batch;

  // Of the decoding thread.
  int group_ = -1;
  int64_t promised_ = 0;  // rows of the group
  int64_t read_ = 0;      // of those
  int64_t before_ = 0;    // rows of the groups before
  std::unique_ptr<arrow::RecordBatchReader> batches_;
};

}  // namespace

void arrow_visit_parquet(RandomAccess& file, const std::string& name, const VisitRows& visit,
                         BlockSize block) {
  const auto source = std::make_shared<ArrowFile>(file);
  try {
    ParquetRows rows(source, name);
    rows.visit(visit, block);
  } catch (const Error& e) {
    source->rethrow();
    if (e.where().empty()) throw e.within(name);
    throw;
  } catch (const std::exception& e) {
    source->rethrow();
    throw Error(ErrorKind::data, format("the Parquet file cannot be read: {}", e.what()), name, get_again);
  }
}

}  // namespace deltatune
