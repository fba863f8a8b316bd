// Object stores through arrow::fs: one file system per authority and options, one try per call.
//
// Arrow's and the SDKs' own retries are off, so that each is seen, counted and bounded in one place
// (data/remote.h). Which failures may pass is told from Arrow's status: what the store refuses (no such key,
// no permission, bad signature) does not; a host that no name server knows and other answers 3xx and 4xx are
// tried once more; everything else may.
#include <arrow/filesystem/filesystem.h>
#include <arrow/filesystem/gcsfs.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/key_value_metadata.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <mutex>

#include "arrow_plugin/plugin.h"
#include "arrow_plugin/status.h"
#include "base/format.h"
#include "data/remote_files.h"

namespace deltatune {
namespace {

namespace afs = arrow::fs;

struct NoRetries final : afs::S3RetryStrategy {
  bool ShouldRetry(const AWSErrorDetail&, int64_t) override { return false; }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&, int64_t) override { return 0; }
};

struct Place {
  std::shared_ptr<afs::FileSystem> store;
  std::string path;  // within the store
};

constexpr const char* endpoint_variables[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"};

struct Stores {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<afs::FileSystem>> by_key;
};

// Never destroyed: a try that was given up may outlive everything.
Stores& opened_stores() {
  static Stores& stores = *new Stores;
  return stores;
}

bool is_permanent(const arrow::Status& status) {
  if (!status.IsIOError()) return true;  // a bad URI, something that is not implemented
  const std::string text = status.ToString();
  static constexpr const char* refusals[] = {"NO_SUCH_KEY",
                                             "NO_SUCH_BUCKET",
                                             "RESOURCE_NOT_FOUND",
                                             "ACCESS_DENIED",
                                             "INVALID_ACCESS_KEY_ID",
                                             "INVALID_CLIENT_TOKEN_ID",
                                             "SIGNATURE_DOES_NOT_MATCH",
                                             "MISSING_AUTHENTICATION_TOKEN",
                                             "UNRECOGNIZED_CLIENT",
                                             "VALIDATION",
                                             "Path does not exist",
                                             "PERMISSION_DENIED",
                                             "UNAUTHENTICATED",
                                             "NOT_FOUND",
                                             "Unable to load libhdfs",
                                             "Unable to load libjvm"};
  for (const char* refusal : refusals) {
    if (text.find(refusal) != std::string::npos) return true;
  }
  return false;
}

bool has_any(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != std::string::npos; });
}

// The host name stands for nothing; curl's error 6.
bool is_unresolved(const std::string& text) {
  return has_any(text, {"curlCode: 6,", "Could not resolve host", "Couldn't resolve host"});
}

// An answer that says the request is wrong. 408, 425 and 429 ask for another try.
bool is_wrong_request(const std::string& text) {
  const bool wrong = has_any(text, {"HTTP status 3", "HTTP status 4"});
  return wrong && !has_any(text, {"HTTP status 408", "HTTP status 425", "HTTP status 429"});
}

// What to look at when a store refuses, by the URI's scheme.
const char* credentials_of(const std::string& uri, const std::string& what) {
  if (uri.rfind("hdfs", 0) == 0 || uri.rfind("viewfs", 0) == 0) {
    return has_any(what, {"libjvm", "libhdfs"}) ? "install Java and Hadoop's libhdfs; JAVA_HOME, and "
                                                  "HADOOP_HOME or ARROW_LIBHDFS_DIR, say where"
                                                : "check the URI, and that this user may read there";
  }
  if (uri.rfind("s3", 0) == 0)
    return "check the URI, and the credentials of the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)";
  return "check the URI, and GOOGLE_APPLICATION_CREDENTIALS; gs://anonymous@bucket needs none";
}

[[noreturn]] void fail(const arrow::Status& status, const std::string& uri) {
  std::string what = status.message();
  if (const size_t line_end = what.find('\n'); line_end != std::string::npos) what.resize(line_end);
  if (is_permanent(status)) throw Error(ErrorKind::data, what, remote_name(uri), credentials_of(uri, what));
  if (is_unresolved(what)) {
    throw TransientError(Error(ErrorKind::resource, what, remote_name(uri),
                               "check the host in the URI or in AWS_ENDPOINT_URL, and the network"),
                         1);
  }
  if (is_wrong_request(what)) {
    throw TransientError(Error(ErrorKind::resource, what, remote_name(uri), credentials_of(uri, what)), 1);
  }
  throw TransientError(ErrorKind::resource, what, remote_name(uri));
}

template <class T>
T value_of(arrow::Result<T> result, const std::string& uri) {
  if (!result.ok()) fail(result.status(), uri);
  return std::move(result).ValueUnsafe();
}

// The endpoint of the environment, where the URI names none.
void set_endpoint(afs::S3Options& options) {
  if (!options.endpoint_override.empty()) return;
  for (const char* name : endpoint_variables) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string endpoint = value;
    const size_t end = endpoint.find("://");
    if (end != std::string::npos) options.scheme = endpoint.substr(0, end);
    options.endpoint_override = end == std::string::npos ? endpoint : endpoint.substr(end + 3);
    while (!options.endpoint_override.empty() && options.endpoint_override.back() == '/') {
      options.endpoint_override.pop_back();
    }
    return;
  }
}

Place open_s3(const std::string& uri) {
  const arrow::Status started = afs::EnsureS3Initialized();
  if (!started.ok()) fail(started, uri);
  // FromUri asks the network for the bucket's region where nothing else says it.
  std::string complete = uri;
  const bool has_query = uri.find('?') != std::string::npos;
  afs::S3Options probe = afs::S3Options::Defaults();
  set_endpoint(probe);
  if (!probe.endpoint_override.empty() && uri.find("endpoint_override=") == std::string::npos) {
    complete += format("{}endpoint_override={}&scheme={}", has_query ? "&" : "?", probe.endpoint_override,
                       probe.scheme);
  }
  Place out;
  afs::S3Options options = value_of(afs::S3Options::FromUri(complete, &out.path), uri);
  const double timeout = remote_options().timeout_s;
  options.connect_timeout = timeout;
  options.request_timeout = timeout;
  options.retry_strategy = std::make_shared<NoRetries>();
  out.store = value_of(afs::S3FileSystem::Make(options), uri);
  return out;
}

Place open_gcs(const std::string& uri) {
  Place out;
  afs::GcsOptions options = value_of(afs::GcsOptions::FromUri(uri, &out.path), uri);
  options.retry_limit_seconds = remote_options().timeout_s;
  out.store = value_of(afs::GcsFileSystem::Make(options), uri);
  return out;
}

Place open_store(const std::string& uri) {
  if (uri.rfind("s3://", 0) == 0) return open_s3(uri);
  if (uri.rfind("gs://", 0) == 0 || uri.rfind("gcs://", 0) == 0) return open_gcs(uri);
  Place out;
  out.store = value_of(afs::FileSystemFromUri(uri, &out.path), uri);
  return out;
}

// The store of a URI is opened once; its path is the rest of the URI, with the authority for buckets.
Place place_of_uri(const std::string& uri) {
  const std::string name = remote_name(uri);
  const size_t scheme_end = name.find("://") + 3;
  const size_t authority_end = std::min(name.find('/', scheme_end), name.size());
  std::string key = name.substr(0, authority_end) + uri.substr(name.size());
  for (const char* variable : endpoint_variables) {
    if (const char* value = std::getenv(variable)) key += format(" {}", value);
  }
  const bool bucket = name.rfind("hdfs", 0) != 0 && name.rfind("viewfs", 0) != 0;
  std::string path = name.substr(bucket ? scheme_end : authority_end);
  if (const size_t at = name.find('@'); bucket && at < authority_end) path = name.substr(at + 1);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  {
    const std::lock_guard lock(opened_stores().mutex);
    const auto found = opened_stores().by_key.find(key);
    if (found != opened_stores().by_key.end()) return {found->second, path};
  }
  const Place opened = open_store(uri);  // may take long: not under the lock
  const std::lock_guard lock(opened_stores().mutex);
  return {opened_stores().by_key.emplace(key, opened.store).first->second, path};
}

class ArrowRemoteFile final : public RemoteFile {
 public:
  explicit ArrowRemoteFile(std::string uri) : uri_(std::move(uri)) {
    const Place place = place_of_uri(uri_);
    file_ = value_of(place.store->OpenInputFile(place.path), uri_);
    size_ = static_cast<uint64_t>(value_of(file_->GetSize(), uri_));
    const auto metadata = file_->ReadMetadata();
    if (metadata.ok() && metadata.ValueUnsafe()) {
      for (const char* key : {"ETag", "etag", "md5Hash", "generation"}) {
        const auto value = metadata.ValueUnsafe()->Get(key);
        if (value.ok() && version_.empty()) version_ = value.ValueUnsafe();
      }
    }
    if (!version_.empty()) return;
    const auto info = place.store->GetFileInfo(place.path);
    if (info.ok() && info.ValueUnsafe().mtime() != afs::kNoTime) {
      version_ = format("modified {}", info.ValueUnsafe().mtime().time_since_epoch().count());
    }
  }
  uint64_t size() const override { return size_; }
  std::string version() const override { return version_; }
  size_t read_at(uint64_t offset, std::span<char> out) override {
    const auto got =
        file_->ReadAt(static_cast<int64_t>(offset), static_cast<int64_t>(out.size()), out.data());
    return static_cast<size_t>(value_of(got, uri_));
  }

 private:
  std::string uri_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  uint64_t size_ = 0;
  std::string version_;
};

}  // namespace

std::shared_ptr<RemoteFile> arrow_open(const std::string& uri) {
  return std::make_shared<ArrowRemoteFile>(uri);
}

bool arrow_is_file(const std::string& uri) {
  const Place place = place_of_uri(uri);
  return value_of(place.store->GetFileInfo(place.path), uri).IsFile();
}

void arrow_close() {
  {
    const std::lock_guard lock(opened_stores().mutex);
    opened_stores().by_key.clear();
  }
  static_cast<void>(afs::EnsureS3Finalized());
}

std::vector<RemoteEntry> arrow_list(const std::string& uri) {
  const Place place = place_of_uri(uri);
  afs::FileSelector selector;
  selector.base_dir = place.path;
  selector.recursive = true;
  selector.allow_not_found = true;
  const std::string name = remote_name(uri);
  const std::string options = uri.substr(name.size());
  const std::string below = name.back() == '/' ? name : name + "/";
  std::vector<RemoteEntry> out;
  for (const afs::FileInfo& info : value_of(place.store->GetFileInfo(selector), uri)) {
    if (!info.IsFile() || info.path().size() <= place.path.size() + 1) continue;
    const std::string path = info.path().substr(place.path == "/" ? 1 : place.path.size() + 1);
    out.push_back({below + path + options, path});
  }
  return out;
}

}  // namespace deltatune
