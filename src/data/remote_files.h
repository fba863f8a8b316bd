// Objects of s3://, gs:// and hdfs:// by their URIs: which exist, opening one, telling versions apart.
//
// A URI is scheme://authority/path?options. Credentials are those of the environment (AWS_ACCESS_KEY_ID, a
// profile, an instance role, GOOGLE_APPLICATION_CREDENTIALS, ...) and never part of the URI. Options are
// those of Arrow's file systems (endpoint_override, scheme, region, ...); for s3 AWS_ENDPOINT_URL_S3 and
// AWS_ENDPOINT_URL stand in for the first two. The store itself is reached through the Arrow plug-in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/remote.h"

namespace deltatune {

/// True for s3://, gs://, gcs://, hdfs:// and viewfs:// URIs.
bool is_remote(const std::string& entry);
/// The path of a file:// URI, percent escapes resolved; other entries as they are. Throws Error{usage} for a
/// host other than localhost.
std::string local_path(const std::string& entry);
/// The URI without its options: how the object is called in messages, and what its extension is taken from.
std::string remote_name(const std::string& uri);
/// Throws Error{usage} for credentials in the URI, a missing bucket, or an unknown scheme.
void check_uri(const std::string& uri);

/// One object below a folder.
struct RemoteEntry {
  std::string uri;   ///< with the options of the folder's URI
  std::string path;  ///< relative to the folder
};

/// Every object below the folder `uri`, at any depth, sorted by path; empty when there is none. Retries.
/// Throws Error{data} when the store refuses, Error{resource} when it cannot be reached or the plug-in is
/// missing.
std::vector<RemoteEntry> remote_files_below(const std::string& uri);
/// True when `uri` is an object.
bool remote_file_exists(const std::string& uri);
/// A small object as a whole. Throws Error{data} above `most` bytes.
std::string read_remote(const std::string& uri, size_t most = size_t{16} << 20);

/// One try; see OpenRemote.
std::shared_ptr<RemoteFile> open_remote(const std::string& uri);

/// Ends the threads and connections of the stores' libraries, which have to be gone before the process ends;
/// nothing may be read from a store after it. Without effect where none was opened.
void close_object_stores();

/// What tells one content of a file from another: a text with the size and, for local files, a hash of all
/// bytes, for objects the version that the store gives them, without reading them. Throws Error{data}.
std::string file_identity(const fs::path& path);

}  // namespace deltatune
