// node level5.js PORT OTHER_PORT TOPIC
// What MQTT 5.0 adds, with mqtt.js: prints what arrived as JSON.
const { randomUUID } = require("crypto");
const mqtt = require("mqtt");

const [first, second, topic] = process.argv.slice(2);
const FIELDS = ["contentType", "messageExpiryInterval", "userProperties"];

function connect(port, options = {}) {
  const url = `mqtt://127.0.0.1:${port}`;
  return mqtt.connectAsync(url, { protocolVersion: 5, reconnectPeriod: 0, ...options });
}

function next(client) {
  return new Promise((resolve) => {
    client.once("message", (_, payload, packet) =>
      resolve({ payload: payload.toString(), properties: packet.properties || {} }));
  });
}

function only(names, values) {
  return Object.fromEntries(names.filter((n) => n in values).map((n) => [n, values[n]]));
}

async function properties(there, here) {
  await there.subscribeAsync(topic, { qos: 1 });
  const found = next(there);
  const sent = { contentType: "text/plain", messageExpiryInterval: 3600 };
  sent.userProperties = { room: ["hall", "den"] };
  await here.publishAsync(topic, "21.5", { qos: 1, properties: sent });
  return only(FIELDS, (await found).properties);
}

async function kept(here) {
  const clientId = `kept-${randomUUID()}`;
  const options = { clientId, clean: false, properties: { sessionExpiryInterval: 300 } };
  const before = await connect(first, options);
  await before.subscribeAsync(`${topic}/kept`, { qos: 1 });
  await before.endAsync();
  await here.publishAsync(`${topic}/kept`, "kept", { qos: 1 });
  const after = mqtt.connect(`mqtt://127.0.0.1:${second}`, { protocolVersion: 5, ...options });
  const message = next(after);
  const present = new Promise((resolve) =>
    after.once("connect", (connack) => resolve(connack.sessionPresent)));
  const found = { present: await present, payload: (await message).payload };
  await after.endAsync();
  return found;
}

async function will(there) {
  await there.subscribeAsync(`${topic}/will`, { qos: 1 });
  const found = next(there);
  const last = { topic: `${topic}/will`, payload: "gone", qos: 1 };
  last.properties = { userProperties: { why: "lost" } };
  const mortal = await connect(second, { will: last });
  mortal.on("error", () => {});
  mortal.stream.destroy();
  const { payload, properties } = await found;
  return { payload, userProperties: properties.userProperties };
}

async function response(there, here) {
  await there.subscribeAsync(`${topic}/ask`, { qos: 1 });
  await here.subscribeAsync(`${topic}/answers`, { qos: 1 });
  const asked = next(there);
  const answered = next(here);
  const properties = { responseTopic: `${topic}/answers`, correlationData: Buffer.from("n1") };
  await here.publishAsync(`${topic}/ask`, "on", { qos: 1, properties });
  const request = await asked;
  const { responseTopic, correlationData } = request.properties;
  const answer = { qos: 1, properties: { correlationData } };
  await there.publishAsync(responseTopic, request.payload.toUpperCase(), answer);
  const found = await answered;
  return { payload: found.payload, correlationData: found.properties.correlationData.toString() };
}

async function main() {
  const there = await connect(first);
  const here = await connect(second);
  const found = {
    properties: await properties(there, here),
    kept: await kept(here),
    will: await will(there),
    response: await response(there, here),
  };
  console.log(JSON.stringify(found));
  await there.endAsync();
  await here.endAsync();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
